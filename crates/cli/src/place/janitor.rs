//! Sweeps what crashed jobs of the same user left on this host, and never anything else.
//!
//! A job is dead when nobody holds the lock on its directory. Of a dead job everything goes, except a device
//! directory whose journal holds data that is not on the shared file system yet, and the records to find it.

use super::base::{self, Base, JobDir, nodes_in};
use super::record::{JobRecord, NodeState, OWNER_FILE};
use super::{mount_points, tree};
use crate::report::plural;
use crate::settings::RAM_DIR;
use crate::settings::hostfile::HostSpec;
use std::path::Path;
use std::time::Duration;
use tameike_agent::control::{AgentControl, Left};
use tameike_agent::give_space_back;
use tameike_core::{Errno, Fault, JobId, Result};
use tameike_fabric::ofi::leftovers;
use tameike_io::os::mount;
use tameike_io::os::owned;
use tameike_io::os::process::wait_ended;

/// What was kept of a dead job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The job.
    pub job: JobId,
    /// Dirty data on this host.
    pub left: Left,
    /// What was on this host and is there no more, in plain words.
    pub lost: Vec<String>,
    /// What programs outside of the job have written to its mount points, in plain words.
    pub strays: Vec<String>,
    /// What could not be swept or looked into, in plain words.
    pub faults: Vec<String>,
    /// Whether nodes of it are on other hosts, which cannot be seen from here.
    pub is_elsewhere: bool,
    /// The command that recovers it.
    pub recover: String,
}

impl Kept {
    /// The line that tells the user.
    pub fn describe(&self) -> String {
        if self.is_strays_alone() { self.state() } else { format!("{}; run: {}", self.state(), self.recover) }
    }

    /// Describes what remains of the job; `status`, `doctor` and `recover` use these words.
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
        format!("job {} was cut off and {what}{faults}", self.job)
    }

    /// Whether nothing else of the job was kept than what others have written to its mount points.
    pub fn is_strays_alone(&self) -> bool {
        let nothing_else = self.left.is_nothing() && self.lost.is_empty() && self.faults.is_empty();
        !self.strays.is_empty() && nothing_else && !self.is_elsewhere
    }
}

pub(super) fn show_left(left: Left) -> String {
    let size = crate::settings::size::show(left.bytes);
    let files = match left.files {
        // The node that knows them is another one.
        0 => String::new(),
        files => format!(" of {files} {}", plural(files as usize, "file")),
    };
    let changes = plural(left.names as usize, "change");
    let names = format!("{} {changes} of names of packed files", left.names);
    let open = format!("{} {} open for writing", left.open, plural(left.open as usize, "file"));
    let told = match left {
        Left { names: 0, files: 0, bytes: 0, .. } => return open,
        Left { names: 0, .. } => format!("{size}{files} not on the shared file system"),
        Left { files: 0, bytes: 0, .. } => format!("{names} that may not be on the shared file system"),
        _ => format!("{size}{files} not on the shared file system, and {names} that may not be there"),
    };
    if left.open == 0 { told } else { format!("{told}, and {open}") }
}

/// Sweeps all dead jobs of the base, or just one; returns what was kept.
///
/// # Errors
/// The base cannot be read or locked.
pub fn sweep<A: AgentControl>(base: &Base, only: Option<&JobId>) -> Result<Vec<Kept>> {
    let lock = base.lock()?;
    let mut kept = Vec::new();
    for job in base.jobs()?.into_iter().filter(|job| only.is_none_or(|only| only == job)) {
        let Some(dir) = JobDir::take_dead(base, &lock, &job)? else { continue };
        kept.extend(sweep_job::<A>(&job, dir.path()));
    }
    Ok(kept)
}

/// A job of which nothing lives on this host, as it was found.
struct Looked {
    kept: Kept,
    /// Nodes that could be looked into, with what they hold.
    nodes: Vec<(u32, Left)>,
}

/// Looks into a job of which nothing lives on this host, and changes nothing.
pub fn look_into<A: AgentControl>(job: &JobId, dir: &Path) -> Kept {
    look_into_job::<A>(job, dir).kept
}

fn look_into_job<A: AgentControl>(job: &JobId, dir: &Path) -> Looked {
    // A record that cannot be read says nothing; the start of the job elsewhere may have one.
    let record = JobRecord::read_anywhere(dir).ok().flatten();
    let known = JobRecord::read(dir).ok().flatten();
    let mut kept = Kept {
        job: job.clone(),
        left: Left::default(),
        lost: record.iter().flat_map(|record| record.unknown.iter().cloned()).collect(),
        strays: mount_points::strays(dir),
        faults: Vec::new(),
        is_elsewhere: known.is_some_and(|record| record.has_other_hosts()),
        recover: format!("tameike recover --job {job}"),
    };
    if let Some(record) = record.as_ref().filter(|_| !dir.starts_with(base::path())) {
        // It is found by its stores alone.
        kept.recover += &device_option(&record.plan.device_root);
    }
    let mut nodes = Vec::new();
    for node in nodes_in(dir) {
        match lost_device(dir, node, record.as_ref()) {
            Ok(lost) => kept.lost.extend(lost),
            Err(fault) => kept.faults.push(fault.to_string()),
        }
        match look_into_node::<A>(dir, node) {
            Ok(left) => {
                kept.left += left;
                nodes.push((node, left));
            }
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    Looked { kept, nodes }
}

/// Sweeps one job of which nothing lives on this host.
pub fn sweep_job<A: AgentControl>(job: &JobId, dir: &Path) -> Option<Kept> {
    let mut faults = Vec::new();
    unmount_below(dir, &mut faults);
    leftovers::sweep(job, None);
    let Looked { mut kept, nodes } = look_into_job::<A>(job, dir);
    kept.faults.splice(0..0, faults);
    // One node's dirty data may need the names that another node's journal knows.
    let keep = !kept.lost.is_empty() || nodes.iter().any(|(_, left)| !left.is_nothing());
    let others = keep || !kept.faults.is_empty();
    // That something is lost is known by the directory of its node.
    let needless = |left: Left| kept.lost.is_empty() && left.is_needless(others);
    let needless: Vec<_> = nodes.into_iter().filter(|(_, left)| needless(*left)).collect();
    for (node, _) in needless {
        kept.faults.extend(discard_node(dir, node).err().map(|fault| fault.to_string()));
    }
    // Other hosts cannot be seen from here: their journals are found by the record.
    let keep = keep || kept.is_elsewhere;
    if !keep && kept.faults.is_empty() && kept.strays.is_empty() {
        match remove_job_dir(dir) {
            Ok(()) => return None,
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    Some(kept)
}

/// What was lost with a node's device directory that is gone. Without a cache view it was to be lost anyhow, and
/// what is on other hosts cannot be seen from here.
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

/// The option by which a store is found.
pub(super) fn device_option(root: &Path) -> String {
    if root == Path::new(RAM_DIR) { String::new() } else { format!(" --device {}", root.display()) }
}

fn look_into_node<A: AgentControl>(dir: &Path, node: u32) -> Result<Left> {
    let Some(device) = NodeState::read(dir, node)?.and_then(|state| state.device_dir) else {
        return Ok(Left::default());
    };
    // What another user has made there since holds nothing of the job: `lost_device` says what is lost.
    let is_own = owned::is_own_dir(&device).unwrap_or(false);
    if !is_own || tree::is_empty_but_for(&device, OWNER_FILE)? {
        return Ok(Left::default());
    }
    A::inspect(&device)
}

/// Removes the device directory of a dead agent, then the node's directory; unless something dirty is in it, or
/// other nodes of the job hold dirty data (`others`) and it has names of files.
///
/// # Errors
/// Something could not be looked into or removed; it is still there.
pub fn sweep_node<A: AgentControl>(dir: &Path, node: u32, others: bool) -> Result<Left> {
    let left = look_into_node::<A>(dir, node)?;
    if left.is_needless(others) {
        discard_node(dir, node)?;
    }
    Ok(left)
}

/// Waits, not beyond `limit`, for the agents on this host of jobs, or of just one, whose driver is dead: they are ending.
///
/// # Errors
/// The base cannot be read.
pub fn await_orphans(base: &Base, only: Option<&JobId>, limit: Duration) -> Result<()> {
    for job in base.jobs()?.into_iter().filter(|job| only.is_none_or(|only| only == job)) {
        let dir = base.job_path(&job);
        // A record that cannot be read is told when the job is swept.
        if JobRecord::read(&dir).is_ok_and(|record| record.is_some_and(|record| !record.driver_is_alive())) {
            let states = nodes_in(&dir).into_iter().filter_map(|node| NodeState::read(&dir, node).ok()?);
            wait_ended(&states.map(|state| state.process()).collect::<Vec<_>>(), limit);
        }
    }
    Ok(())
}

/// Removes all of a node of a job that never ran, whose agent is dead.
///
/// # Errors
/// Something could not be removed.
pub fn discard_node(dir: &Path, node: u32) -> Result<()> {
    if let Some(mut state) = NodeState::read(dir, node)? {
        state.device_used = false;
        // Where it cannot be written, a death in between would be told as a loss: no reason to keep all.
        let _ = state.write(dir);
        if let Some(device) = &state.device_dir {
            remove_device(device)?;
        }
    }
    tree::remove(&base::node_dir(dir, node))
}

/// Removes a device directory whose agent is dead, and gives its space back, also what programs hold of it that live on.
/// A directory that another user has made in its place stays.
///
/// # Errors
/// As of [`tree::remove`].
pub fn remove_device(dir: &Path) -> Result<()> {
    match owned::is_own_dir(dir) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(fault) => {
            log::warn!("{fault}");
            return Ok(());
        }
    }
    if let Err(fault) = give_space_back(dir) {
        // Nobody else may have a descriptor of it.
        log::warn!("{fault}");
    }
    tree::remove(dir)
}

/// Removes all of a dead job on this host, whatever its journals hold.
///
/// # Errors
/// Something of the job lives, or could not be removed.
pub fn discard_job(base: &Base, job: &JobId) -> Result<()> {
    let lock = base.lock()?;
    let busy = || Fault::new(Errno::EBUSY, "something of the job still runs");
    let dir = JobDir::take_dead(base, &lock, job)?.ok_or_else(busy)?;
    nodes_in(dir.path()).into_iter().try_for_each(|node| discard_node(dir.path(), node))?;
    remove_job_dir(dir.path())
}

/// Removes the directory of a job that is over, unless others have written to its mount points.
///
/// # Errors
/// `ENOTEMPTY` when they have: then it stays whole; else as of [`tree::remove`].
pub fn remove_job_dir(dir: &Path) -> Result<()> {
    mount_points::remove(dir)?;
    tree::remove(dir)
}

/// Unmounts what `fusermount3` mounted for a job that is dead.
pub fn unmount_below(dir: &Path, faults: &mut Vec<String>) {
    let mounts = mount::mounts().unwrap_or_default();
    for path in mounts.iter().rev().filter(|path| path.starts_with(dir)) {
        let done = mount::unmount(path).or_else(|_: Fault| mount::unmount_by_helper(path));
        faults.extend(done.err().map(|fault| fault.to_string()));
    }
}
