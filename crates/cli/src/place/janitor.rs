//! Sweeps what crashed jobs of the same user left on this host, and never anything else.
//!
//! A job is dead when nobody holds the lock on its directory. Of a dead job everything goes, except a device
//! directory whose journal holds data that is not on the shared file system yet, and the records to find it.

use super::base::{Base, JobDir, node_of_dir};
use super::record::{JobRecord, NodeState};
use super::tree;
use std::path::Path;
use std::time::Duration;
use tameike_agent::control::{AgentControl, Left};
use tameike_core::{Errno, Fault, JobId, Result};
use tameike_io::os::mount;
use tameike_io::os::process::wait_ended;

/// What was kept of a dead job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The job.
    pub job: JobId,
    /// Dirty data on this host.
    pub left: Left,
    /// What could not be swept or looked into, in plain words.
    pub faults: Vec<String>,
}

impl Kept {
    /// The line that tells the user.
    pub fn describe(&self) -> String {
        let what = match self.left {
            Left { files: 0, bytes: 0, .. } => "may have left data on its nodes".to_owned(),
            Left { files, bytes, .. } => {
                let size = crate::settings::size::show(bytes);
                format!("left {size} of {files} files that are not on the shared file system")
            }
        };
        let faults = self.faults.iter().map(|fault| format!(" ({fault})")).collect::<String>();
        format!("job {} was cut off and {what}{faults}; run: tameike recover --job {}", self.job, self.job)
    }
}

/// Sweeps all dead jobs of the base; returns what was kept.
///
/// # Errors
/// The base cannot be read or locked.
pub fn sweep<A: AgentControl>(base: &Base) -> Result<Vec<Kept>> {
    let lock = base.lock()?;
    let mut kept = Vec::new();
    for job in base.jobs()? {
        let Some(dir) = JobDir::take_dead(base, &lock, &job)? else { continue };
        kept.extend(sweep_job::<A>(&job, dir.path()));
    }
    Ok(kept)
}

/// Sweeps one job of which nothing lives on this host.
pub fn sweep_job<A: AgentControl>(job: &JobId, dir: &Path) -> Option<Kept> {
    let mut kept = Kept { job: job.clone(), left: Left::default(), faults: Vec::new() };
    let mut keep = false;
    unmount_below(dir, &mut kept.faults);
    let mut nodes = Vec::new();
    for node in nodes_in(dir) {
        match look_into_node::<A>(dir, node) {
            Ok(left) => {
                kept.left.files += left.files;
                kept.left.bytes += left.bytes;
                keep |= !left.is_nothing();
                nodes.push((node, left));
            }
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    // One node's dirty data may need the names that another node's journal knows.
    let others = keep || !kept.faults.is_empty();
    for (node, _) in nodes.into_iter().filter(|(_, left)| left.is_needless(others)) {
        kept.faults.extend(discard_node(dir, node).err().map(|fault| fault.to_string()));
    }
    // Other hosts cannot be seen from here: their journals are found by the record.
    keep |= JobRecord::read(dir).is_ok_and(|record| record.is_some_and(|record| record.has_other_hosts()));
    if !keep && kept.faults.is_empty() {
        match tree::remove(dir) {
            Ok(()) => return None,
            Err(fault) => kept.faults.push(fault.to_string()),
        }
    }
    Some(kept)
}

fn look_into_node<A: AgentControl>(dir: &Path, node: u32) -> Result<Left> {
    let Some(device) = NodeState::read(dir, node)?.and_then(|state| state.device_dir) else {
        return Ok(Left::default());
    };
    if tree::is_empty(&device)? { Ok(Left::default()) } else { A::inspect(&device) }
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

/// Waits, not beyond `limit`, for the agents on this host of jobs whose driver is dead: they are ending.
///
/// # Errors
/// The base cannot be read.
pub fn await_orphans(base: &Base, limit: Duration) -> Result<()> {
    for job in base.jobs()? {
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
    if let Some(device) = NodeState::read(dir, node)?.and_then(|state| state.device_dir) {
        tree::remove(&device)?;
    }
    tree::remove(&super::base::node_dir(dir, node))
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
    tree::remove(dir.path())
}

/// Unmounts what `fusermount3` mounted for a job that is dead.
pub fn unmount_below(dir: &Path, faults: &mut Vec<String>) {
    let mounts = mount::mounts().unwrap_or_default();
    for path in mounts.iter().rev().filter(|path| path.starts_with(dir)) {
        let done = mount::unmount(path).or_else(|_: Fault| mount::unmount_by_helper(path));
        faults.extend(done.err().map(|fault| fault.to_string()));
    }
}

/// The numbers of the nodes that have a directory in a job's.
pub fn nodes_in(dir: &Path) -> Vec<u32> {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    let mut nodes: Vec<u32> = entries.filter_map(|entry| node_of_dir(entry.file_name().to_str()?)).collect();
    nodes.sort_unstable();
    nodes
}
