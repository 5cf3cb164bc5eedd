//! Sweeps what crashed jobs of the same user left on this host, and never anything else.
//!
//! A job is dead when nobody holds the lock on its directory. Of a dead job everything goes, except a device
//! directory whose journal holds data that is not on the shared file system yet, and the records to find it.

use super::base::{Base, JobDir, node_of_dir};
use super::record::{JobRecord, NodeState};
use super::tree;
use std::path::Path;
use tameike_agent::control::{AgentControl, Left};
use tameike_core::{Fault, JobId, Result};
use tameike_io::os::mount;

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
            Left { files: 0, bytes: 0 } => "may have left data on its nodes".to_owned(),
            Left { files, bytes } => {
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
    for node in nodes_in(dir) {
        match sweep_node::<A>(dir, node) {
            Ok(left) if left.is_nothing() => {}
            Ok(left) => {
                kept.left.files += left.files;
                kept.left.bytes += left.bytes;
                keep = true;
            }
            Err(fault) => kept.faults.push(fault.to_string()),
        }
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

/// Removes the device directory of a dead agent unless something dirty is in it, then the node's directory.
///
/// # Errors
/// Something could not be looked into or removed; it is still there.
pub fn sweep_node<A: AgentControl>(dir: &Path, node: u32) -> Result<Left> {
    if let Some(device) = NodeState::read(dir, node)?.and_then(|state| state.device_dir) {
        let left = if tree::is_empty(&device)? { Left::default() } else { A::inspect(&device)? };
        if !left.is_nothing() {
            return Ok(left);
        }
        tree::remove(&device)?;
    }
    tree::remove(&super::base::node_dir(dir, node))?;
    Ok(Left::default())
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
