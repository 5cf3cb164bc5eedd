//! Cleanup of a node: programs, mounts, device, directories. Dirty data stays, with the records to find it.

use super::enter::{JOB_DIR_VARIABLE, NODE_VARIABLE};
use super::start::NodeStart;
use crate::place::base::{self, Base, JobDir};
use crate::place::mount_points::MountPoint;
use crate::place::{janitor, tree, volume_store};
use libc::{SIGKILL, SIGTERM};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_agent::control::{Isolation, Undrained};
use tameike_core::{Fault, JobId, NodeId, Result};
use tameike_fabric::ofi::leftovers;
use tameike_io::os::mount;
use tameike_io::os::process::{self, ProcessId, sharing_mounts, wait_ended, with_variables};

/// Time for programs to exit after SIGTERM before SIGKILL.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Rounds of listing programs: each round finds programs that those of the previous one have just started.
const END_ROUNDS: usize = 8;

/// Everything that a node has created on its host.
pub struct Belongings {
    base: Base,
    job_dir: JobDir,
    job: JobId,
    node: u32,
    has_device: bool,
    /// The store of a volume, with the number of the volume.
    volume_store: Option<(PathBuf, String)>,
    mounts: Vec<PathBuf>,
    /// The directories below the mounts.
    mount_points: Vec<MountPoint>,
    isolation: Isolation,
    driver_is_here: bool,
    is_new: bool,
}

impl Belongings {
    pub(super) fn new(base: Base, job_dir: JobDir, start: &NodeStart) -> Self {
        Self {
            base,
            job_dir,
            job: start.start.job.clone(),
            node: start.start.node.0,
            has_device: false,
            volume_store: None,
            mounts: Vec::new(),
            mount_points: Vec::new(),
            isolation: Isolation::None,
            driver_is_here: start.driver_is_here,
            is_new: start.start.mode != tameike_agent::control::AgentMode::Recover,
        }
    }

    pub(super) fn job_dir(&self) -> &Path {
        self.job_dir.path()
    }

    pub(super) fn node_dir(&self) -> PathBuf {
        base::node_dir(self.job_dir.path(), self.node)
    }

    pub(super) fn base(&self) -> &Base {
        &self.base
    }

    /// Notes whether the driver is on this host now.
    pub(super) fn driver_moved(&mut self, is_here: bool) {
        self.driver_is_here = is_here;
    }

    pub(super) fn add_device(&mut self) {
        self.has_device = true;
    }

    pub(super) fn add_volume_store(&mut self, dir: PathBuf, volume: String) {
        self.volume_store = Some((dir, volume));
    }

    /// Removes the store of a volume, whose agent has stopped.
    pub(super) fn remove_volume_store(&self) {
        let Some((dir, volume)) = &self.volume_store else { return };
        if let Err(fault) = volume_store::remove(dir, volume, self.node) {
            log::error!("removing the store of the volume: {fault}");
        }
    }

    pub(super) fn add_mount(&mut self, isolation: Isolation, path: PathBuf, mount_point: MountPoint) {
        self.isolation = isolation;
        self.mounts.push(path);
        self.mount_points.push(mount_point);
    }

    /// Returns messages on files that programs outside the job wrote below the mounts, if the driver cannot see them.
    pub(super) fn strays(&self) -> Vec<String> {
        let found = self.mount_points.iter().filter_map(MountPoint::strays);
        match self.isolation {
            _ if !self.driver_is_here => {
                let host = process::host_name();
                found.map(|stray| format!("on {host}: {stray}")).collect()
            }
            Isolation::None => found.collect(),
            Isolation::MountNamespace | Isolation::UserNamespace => Vec::new(),
        }
    }

    /// Terminates the node's programs with SIGTERM, then SIGKILL.
    pub(super) fn end_programs(&self) {
        if self.mounts.is_empty() {
            return;
        }
        for round in 0..END_ROUNDS {
            let programs = self.programs();
            if programs.is_empty() {
                return;
            }
            let signal = if round == 0 { SIGTERM } else { SIGKILL };
            for program in &programs {
                log::info!("ending program {} with signal {signal}", program.pid);
                // It may have exited.
                let _ = program.signal(signal);
            }
            wait_ended(&programs, END_LIMIT);
        }
    }

    /// Returns the programs of the node: those in its namespace, or, without a namespace, those with the variables that it sets.
    fn programs(&self) -> Vec<ProcessId> {
        match self.isolation {
            Isolation::MountNamespace | Isolation::UserNamespace => sharing_mounts(),
            Isolation::None => {
                let node = self.node.to_string();
                let job_dir = self.job_dir.path().as_os_str();
                with_variables(&[(JOB_DIR_VARIABLE, job_dir), (NODE_VARIABLE, node.as_ref())])
            }
        }
    }

    /// Cleans up after a failed start, which has produced no dirty data, with the store of a volume if it is new.
    pub(super) fn clean_up_unused(self, has_new_store: bool) {
        if has_new_store {
            self.remove_volume_store();
        }
        let left = if self.is_new { Ok(Undrained::default()) } else { Err(Fault::io("the start failed")) };
        self.clean_up(&left, false);
    }

    /// Cleans up after the agent has stopped. The device directory stays if it has dirty data or its state is unknown, or if it
    /// has names of files and other nodes may have dirty data (`keep`).
    pub(super) fn clean_up(self, left: &Result<Undrained>, keep: bool) {
        self.unmount();
        leftovers::sweep(&self.job, Some(NodeId(self.node)));
        if !matches!(left, Ok(left) if left.is_needless(keep)) {
            return;
        }
        if let Err(fault) = self.remove() {
            log::warn!("cleaning up node {}: {fault}", self.node);
        }
    }

    fn unmount(&self) {
        for path in self.mounts.iter().rev() {
            let done = match self.isolation {
                Isolation::None => mount::unmount_by_helper(path),
                Isolation::MountNamespace | Isolation::UserNamespace => mount::unmount(path),
            };
            if let Err(fault) = done {
                log::warn!("{fault}");
            }
        }
    }

    fn remove(&self) -> Result<()> {
        if self.has_device {
            janitor::discard_node(self.job_dir.path(), self.node)?;
        } else {
            tree::remove(&self.node_dir())?;
        }
        if self.driver_is_here {
            return Ok(());
        }
        // The last node of the job on this host removes the job's directory.
        janitor::remove_unused_job_dir(&self.base, self.job_dir.path())
    }
}
