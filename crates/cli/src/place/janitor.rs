//! Removes leftovers of the user's crashed jobs on this host, and never anything else.
//!
//! A job has ended if no process holds the lock on its directory. Everything of such a job is removed, except device
//! directories whose journals have dirty data, and the records to find them.

use super::base::{self, Base, JobDir, nodes_in};
use super::record::{JobRecord, NodeState, OWNER_FILE};
use super::{mount_points, tree};
use crate::report::plural;
use crate::settings::RAM_DIR;
use crate::settings::hostfile::HostSpec;
use std::path::Path;
use std::time::Duration;
use tameike_agent::control::{AgentControl, Undrained};
use tameike_agent::release_space;
use tameike_core::{Errno, Fault, JobId, Result};
use tameike_fabric::ofi::leftovers;
use tameike_io::os::mount;
use tameike_io::os::owned;
use tameike_io::os::process::{ask_until, monotonic};

/// Pause between two looks at a job whose driver has exited.
const ORPHAN_PAUSE: Duration = Duration::from_millis(20);

/// Leftovers of a crashed job that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The job.
    pub job: JobId,
    /// Dirty data on this host.
    pub left: Undrained,
    /// Messages on data of this host that is lost.
    pub lost: Vec<String>,
    /// Messages on files that programs outside the job wrote to its mount points.
    pub strays: Vec<String>,
    /// Messages on parts that could not be removed or examined.
    pub faults: Vec<String>,
    /// True if the job has nodes on other hosts, whose state is unknown here.
    pub is_elsewhere: bool,
    /// The command that recovers it.
    pub recover: String,
}

impl Kept {
    /// Returns the message for the user.
    pub fn describe(&self) -> String {
        if self.is_strays_alone() { self.state() } else { format!("{}; run: {}", self.state(), self.recover) }
    }

    /// Describes the leftovers of the job, for `status`, `doctor` and `recover`.
    pub fn state(&self) -> String {
        if self.is_strays_alone() {
            return format!("job {} has ended, but {}", self.job, self.strays.join("; "));
        }
        let what = match self.left {
            left if !left.is_nothing() => format!("left {}", show_left(left)),
            _ if !self.lost.is_empty() => "lost data".to_owned(),
            _ if self.is_elsewhere || !self.faults.is_empty() => "may have left data on its nodes".to_owned(),
            _ => "left nothing that the shared file system lacks".to_owned(),
        };
        let faults = self.lost.iter().chain(&self.strays).chain(&self.faults);
        let faults = faults.map(|fault| format!(" ({fault})")).collect::<String>();
        format!("job {} was interrupted and {what}{faults}", self.job)
    }

    /// Returns true if only files of other programs on its mount points are left.
    pub fn is_strays_alone(&self) -> bool {
        let nothing_else = self.left.is_nothing() && self.lost.is_empty() && self.faults.is_empty();
        !self.strays.is_empty() && nothing_else && !self.is_elsewhere
    }
}

pub(super) fn show_left(left: Undrained) -> String {
    let size = crate::settings::size::show(left.bytes);
    let files = match left.files {
        // Another node knows the files.
        0 => String::new(),
        files => format!(" of {files} {}", plural(files as usize, "file")),
    };
    let changes = plural(left.names as usize, "change");
    let names = format!("{} {changes} of names of packed files", left.names);
    let open = format!("{} {} open for writing", left.open, plural(left.open as usize, "file"));
    let data = match left {
        Undrained { names: 0, files: 0, bytes: 0, .. } => return open,
        Undrained { names: 0, .. } => format!("{size}{files} not on the shared file system"),
        Undrained { files: 0, bytes: 0, .. } => format!("{names} that may not be on the shared file system"),
        _ => format!("{size}{files} not on the shared file system, and {names} that may not be there"),
    };
    if left.open == 0 { data } else { format!("{data}, and {open}") }
}

/// Removes all crashed jobs of the base, or only one; returns what is kept.
pub fn sweep<A: AgentControl>(base: &Base, only: Option<&JobId>) -> Result<Vec<Kept>> {
    let lock = base.lock()?;
    let mut kept = Vec::new();
    for job in base.jobs()?.into_iter().filter(|job| only.is_none_or(|only| only == job)) {
        let Some(dir) = JobDir::lock_ended(base, &lock, &job)? else { continue };
        kept.extend(sweep_job::<A>(&job, dir.path()));
    }
    Ok(kept)
}

/// State of a job without running processes on this host.
struct Examined {
    kept: Kept,
    /// Nodes that could be examined, with their dirty data.
    nodes: Vec<(u32, Undrained)>,
}

/// Examines a job without running processes on this host, and changes nothing.
pub fn examine<A: AgentControl>(job: &JobId, dir: &Path) -> Kept {
    examine_job::<A>(job, dir).kept
}

fn examine_job<A: AgentControl>(job: &JobId, dir: &Path) -> Examined {
    // Ignore an unreadable record; nodes' directories may have another one.
    let record = JobRecord::read_anywhere(dir).ok().flatten();
    let known = JobRecord::read(dir).ok().flatten();
    let mut kept = Kept {
        job: job.clone(),
        left: Undrained::default(),
        lost: record.iter().flat_map(|record| record.unknown.iter().cloned()).collect(),
        strays: mount_points::strays(dir),
        faults: Vec::new(),
        // A volume has another record, which leads to its stores.
        is_elsewhere: known.is_some_and(|record| record.has_other_hosts() && record.plan.volume.is_none()),
        recover: format!("tameike recover --job {job}"),
    };
    if let Some(record) = record.as_ref().filter(|_| !dir.starts_with(base::path())) {
        // Only its stores lead to it.
        kept.recover += &device_option(&record.plan.device_root);
    }
    let mut nodes = Vec::new();
    for node in nodes_in(dir) {
        match lost_device(dir, node, record.as_ref()) {
            Ok(lost) => kept.lost.extend(lost),
            Err(fault) => kept.faults.push(fault.to_string()),
        }
        match examine_node::<A>(dir, node) {
            Ok(left) => {
                kept.left += left;
                nodes.push((node, left));
            }
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    Examined { kept, nodes }
}

/// Removes one job without running processes on this host, except what must be kept.
pub fn sweep_job<A: AgentControl>(job: &JobId, dir: &Path) -> Option<Kept> {
    let mut faults = Vec::new();
    unmount_below(dir, &mut faults);
    leftovers::sweep(job, None);
    let Examined { mut kept, nodes } = examine_job::<A>(job, dir);
    kept.faults.splice(0..0, faults);
    // One node's dirty data may need the names that another node's journal knows.
    let keep = !kept.lost.is_empty() || nodes.iter().any(|(_, left)| !left.is_nothing());
    let others = keep || !kept.faults.is_empty();
    // The directory of a node proves that its data is lost.
    let needless = |left: Undrained| kept.lost.is_empty() && left.is_needless(others);
    let needless: Vec<_> = nodes.into_iter().filter(|(_, left)| needless(*left)).collect();
    for (node, _) in needless {
        kept.faults.extend(discard_node(dir, node).err().map(|fault| fault.to_string()));
    }
    // The record leads to journals on other hosts.
    let keep = keep || kept.is_elsewhere;
    if !keep && kept.faults.is_empty() && kept.strays.is_empty() {
        match remove_job_dir(dir) {
            Ok(()) => return None,
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    Some(kept)
}

/// Returns the message on data that was lost with a missing device directory. Data of views other than the cache view does not
/// outlive the job, and data of other hosts is unknown here.
fn lost_device(dir: &Path, node: u32, record: Option<&JobRecord>) -> Result<Option<String>> {
    let matters = record.is_none_or(|record| {
        let is_here = record.plan.nodes.get(node as usize).is_none_or(HostSpec::is_here);
        record.plan.shared_dir.is_some() && is_here
    });
    match NodeState::read(dir, node)?.filter(|_| matters) {
        Some(state) => state.lost_device(),
        None => Ok(None),
    }
}

/// Returns the option that leads to a store.
pub(super) fn device_option(root: &Path) -> String {
    if root == Path::new(RAM_DIR) { String::new() } else { format!(" --device {}", root.display()) }
}

fn examine_node<A: AgentControl>(dir: &Path, node: u32) -> Result<Undrained> {
    let Some(device) = NodeState::read(dir, node)?.and_then(|state| state.device_dir) else {
        return Ok(Undrained::default());
    };
    // A directory of another user has no data of the job: `lost_device` reports the loss.
    let is_own = owned::is_own_dir(&device).unwrap_or(false);
    if !is_own || tree::is_empty_but_for(&device, OWNER_FILE)? {
        return Ok(Undrained::default());
    }
    A::inspect(&device)
}

/// Removes the device directory of an exited agent, then the node's directory, unless the device has dirty data, or it has
/// names of files and other nodes of the job have dirty data (`others`).
pub fn sweep_node<A: AgentControl>(dir: &Path, node: u32, others: bool) -> Result<Undrained> {
    let left = examine_node::<A>(dir, node)?;
    if left.is_needless(others) {
        discard_node(dir, node)?;
    }
    Ok(left)
}

/// Waits for at most `limit` until no process on this host uses a job whose driver has exited, of all jobs or only one. Its agents exit
/// without their driver.
pub fn await_orphans(base: &Base, only: Option<&JobId>, limit: Duration) -> Result<()> {
    let end = monotonic() + limit;
    for job in base.jobs()?.into_iter().filter(|job| only.is_none_or(|only| only == job)) {
        let ended = || match is_orphaned(base, &job) {
            Ok(true) => None,
            Ok(false) => Some(Ok(())),
            Err(fault) => Some(Err(fault)),
        };
        ask_until(end.saturating_sub(monotonic()), ORPHAN_PAUSE, ended).transpose()?;
    }
    Ok(())
}

/// Returns true if a process uses the job although its driver has exited.
fn is_orphaned(base: &Base, job: &JobId) -> Result<bool> {
    let lock = base.lock()?;
    // `sweep` reports an unreadable record, or a directory that cannot be locked.
    let has_driver = match JobRecord::read(&base.job_path(job)) {
        Ok(Some(record)) => record.driver_is_alive(),
        Ok(None) | Err(_) => true,
    };
    Ok(!has_driver && matches!(JobDir::lock_ended(base, &lock, job), Ok(None)))
}

/// Removes everything of a node whose agent has exited.
pub fn discard_node(dir: &Path, node: u32) -> Result<()> {
    if let Some(mut state) = NodeState::read(dir, node)? {
        state.device_used = false;
        // If the write fails, a crash before the removal would be reported as a loss: still better than to keep everything.
        let _ = state.write(dir);
        if let Some(device) = &state.device_dir {
            remove_device(device)?;
        }
    }
    tree::remove(&base::node_dir(dir, node))
}

/// Removes a device directory whose agent has exited, and frees its space even if running programs have it open. A directory of
/// another user in its place stays.
pub fn remove_device(dir: &Path) -> Result<()> {
    match owned::is_own_dir(dir) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(fault) => {
            log::warn!("{fault}");
            return Ok(());
        }
    }
    if let Err(fault) = release_space(dir) {
        // Probably no other process has a descriptor of it.
        log::warn!("{fault}");
    }
    tree::remove(dir)
}

/// Removes a crashed job on this host, with the data of its journals.
pub fn discard_job(base: &Base, job: &JobId) -> Result<()> {
    let lock = base.lock()?;
    let busy = || Fault::new(Errno::EBUSY, "a process of the job still runs");
    let dir = JobDir::lock_ended(base, &lock, job)?.ok_or_else(busy)?;
    nodes_in(dir.path()).into_iter().try_for_each(|node| discard_node(dir.path(), node))?;
    remove_job_dir(dir.path())
}

/// Removes the directory of an ended job, unless other programs have written to its mount points. Then it fails with `ENOTEMPTY` and removes nothing.
pub fn remove_job_dir(dir: &Path) -> Result<()> {
    mount_points::remove(dir)?;
    tree::remove(dir)
}

/// Removes the directory of a job that no node of this host uses any more, unless a driver has its record there: then several hosts may share
/// the directory.
pub fn remove_unused_job_dir(base: &Base, dir: &Path) -> Result<()> {
    let _lock = base.lock()?;
    if nodes_in(dir).is_empty() && JobRecord::read(dir)?.is_none() { remove_job_dir(dir) } else { Ok(()) }
}

/// Unmounts mounts of `fusermount3` of a crashed job.
pub fn unmount_below(dir: &Path, faults: &mut Vec<String>) {
    let mounts = mount::mounts().unwrap_or_default();
    for path in mounts.iter().rev().filter(|path| path.starts_with(dir)) {
        let done = mount::unmount(path).or_else(|_: Fault| mount::unmount_by_helper(path));
        faults.extend(done.err().map(|fault| fault.to_string()));
    }
}
