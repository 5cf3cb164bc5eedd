//! The records of jobs and nodes in their directories, for other commands, the janitor and `recover`. They contain no secrets.

use super::base::{self, Base, node_dir, node_of_dir, nodes_in};
use super::tree;
use crate::settings::JobPlan;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tameike_agent::control::NodeRecord;
use tameike_core::{Errno, Fault, HomeMap, JobId, NodeId, Result};
use tameike_io::disk::file::sync_directory;
use tameike_io::os::owned;
use tameike_io::os::process::{self, ProcessId};

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// The job starts or runs, or its driver was killed.
    Running,
    /// The job has ended with dirty data.
    Interrupted,
}

/// The record of a job, `job.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The settings of the job.
    pub plan: JobPlan,
    /// The state of the job.
    pub state: JobState,
    /// Start time in seconds since 1970-01-01 UTC.
    pub started: i64,
    /// Process id of the driver.
    pub driver_pid: u32,
    /// Start time of that process.
    pub driver_start: u64,
    /// The user namespace of the driver, from which nodes can be entered.
    pub driver_namespace: String,
    /// The nodes that are ready, in the order of their numbers.
    pub nodes: Vec<NodeRecord>,
    /// The home map, if homes have replicas and the agents have been ready: no agent has a newer one.
    #[serde(default)]
    pub map: Option<HomeMap>,
    /// Number of nodes with which the job began, if nodes were added since.
    #[serde(default)]
    pub founders: Option<u32>,
    /// Nodes that have left the job.
    #[serde(default)]
    pub gone: Vec<u32>,
    /// Messages on unknown data of a job whose directory was lost.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl JobRecord {
    /// Returns the record of a job that this process starts.
    pub fn new(plan: JobPlan) -> Result<Self> {
        let driver = ProcessId::own()?;
        Ok(Self {
            plan,
            state: JobState::Running,
            started: process::wall_seconds(),
            driver_pid: driver.pid,
            driver_start: driver.start,
            driver_namespace: user_namespace(),
            nodes: Vec::new(),
            map: None,
            founders: None,
            gone: Vec::new(),
            unknown: Vec::new(),
        })
    }

    /// Returns the record for other hosts, with the name of this host.
    pub fn seen_from_elsewhere(&self) -> Self {
        let mut record = self.clone();
        let here = record.plan.nodes.iter_mut().filter(|node| node.is_here());
        here.for_each(|node| node.host = process::host_name());
        record
    }

    /// Returns true if the driver runs.
    pub fn driver_is_alive(&self) -> bool {
        self.driver().is_alive()
    }

    /// Returns the driver's process.
    pub fn driver(&self) -> ProcessId {
        ProcessId { pid: self.driver_pid, start: self.driver_start }
    }

    /// Returns true if nodes of the job are on other hosts.
    pub fn has_other_hosts(&self) -> bool {
        self.plan.nodes.iter().any(|node| !node.is_here())
    }

    /// Writes the record.
    pub fn write(&self, job_dir: &Path) -> Result<()> {
        write_json(&path(job_dir), self).map_err(base::with_advice)
    }

    /// Reads the record of a job; `None` if it has none.
    pub fn read(job_dir: &Path) -> Result<Option<Self>> {
        read_json(&path(job_dir))
    }

    /// Removes the record of a job.
    pub fn remove(job_dir: &Path) -> Result<()> {
        let path = path(job_dir);
        std::fs::remove_file(&path)
            .map_err(|error| Fault::from_os(format_args!("removing {}", path.display()), &error))
    }

    /// Reads the record of a job from its directory, or from that of a node on a host without the driver.
    pub fn read_anywhere(job_dir: &Path) -> Result<Option<Self>> {
        if let Some(record) = Self::read(job_dir)? {
            return Ok(Some(record));
        }
        let nodes = nodes_in(job_dir).into_iter();
        nodes.map(|node| Self::read(&node_dir(job_dir, node))).find_map(Result::transpose).transpose()
    }

    /// Returns all jobs that have a record, with their directories.
    pub fn all(base: &Base) -> Result<Vec<(PathBuf, Self)>> {
        let dirs = base.jobs()?.into_iter().map(|job| base.job_path(&job));
        dirs.filter_map(|dir| Self::read(&dir).transpose().map(|record| Ok((dir, record?)))).collect()
    }
}

fn path(job_dir: &Path) -> PathBuf {
    job_dir.join("job.json")
}

/// The record of a node, `node.json`. The node writes it before it creates anything else, so that a crash leaves nothing that
/// cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// The agent's process and mounts.
    pub record: NodeRecord,
    /// Number of nodes of the job.
    pub node_count: u32,
    /// The agent's device directory.
    pub device_dir: Option<PathBuf>,
    /// The device directory has been used and not been removed: its absence is a loss.
    #[serde(default)]
    pub device_used: bool,
    /// Identifies the boot of the machine in which the agent ran.
    #[serde(default)]
    pub boot_id: String,
}

impl NodeState {
    /// Returns the agent's process.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.record.pid, start: self.record.pid_start }
    }

    /// Returns the message on a used device directory that is missing.
    pub fn lost_device(&self) -> Result<Option<String>> {
        let Some(device) = self.device_dir.as_ref().filter(|_| self.device_used) else { return Ok(None) };
        // A directory of another user in its place is not examined.
        let is_own = owned::is_own_dir(device);
        // An interrupted recovery may have written only the owner's record.
        if is_own == Ok(true) && !tree::is_empty_but_for(device, OWNER_FILE)? {
            return Ok(None);
        }
        let why = if let Err(fault) = &is_own {
            &fault.to_string()
        } else if self.boot_id == boot_id() {
            "another program has removed it"
        } else {
            "the machine has been restarted since"
        };
        let node = self.record.node;
        Ok(Some(format!(
            "the data of {node} in {} is lost, the directory is missing: {why}",
            device.display()
        )))
    }

    /// Writes the record.
    pub fn write(&self, job_dir: &Path) -> Result<()> {
        let path = node_dir(job_dir, self.record.node.0).join("node.json");
        write_json(&path, self).map_err(base::with_advice)
    }

    /// Reads the record of a node; `None` if it has none.
    pub fn read(job_dir: &Path, node: u32) -> Result<Option<Self>> {
        read_json(&node_dir(job_dir, node).join("node.json"))
    }
}

/// Identifies the user namespace of this process.
pub fn user_namespace() -> String {
    std::fs::read_link("/proc/self/ns/user").map(|link| link.display().to_string()).unwrap_or_default()
}

/// Identifies this boot of the machine.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim_end().to_owned()
}

/// The record of the owner in a device directory. A directory without other files has lost its data, or never had any.
pub const OWNER_FILE: &str = "owner.json";

/// The owner of a device directory, `owner.json`. If everything else of the job is gone, it shows that the directory is not
/// needed, or how to recover its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOwner {
    /// The job's name.
    pub job: JobId,
    /// The node's directory in its job's directory.
    pub node_dir: PathBuf,
    /// The parent of the user's directory for jobs. A process that sees another directory at this path cannot tell what is in
    /// this one.
    pub place: PathBuf,
    /// Device and inode number of `place`.
    pub place_id: (u64, u64),
    /// Process id of the agent.
    pub pid: u32,
    /// Start time of that process.
    pub pid_start: u64,
    /// The job's record at the start of the agent.
    pub record: JobRecord,
    /// The job's driver was on this host.
    pub driver_is_here: bool,
}

impl DeviceOwner {
    /// Returns the record for a device directory of this process.
    pub fn new(base: &Base, node: NodeId, record: &JobRecord, driver_is_here: bool) -> Result<Self> {
        let process = ProcessId::own()?;
        let job = &record.plan.job;
        let job_dir = base.job_path(job);
        let place = job_dir.parent().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
        let place_id = numbers(&place)?;
        let node_dir = node_dir(&job_dir, node.0);
        Ok(Self {
            job: job.clone(),
            node_dir,
            place,
            place_id,
            pid: process.pid,
            pid_start: process.start,
            record: record.clone(),
            driver_is_here,
        })
    }

    /// Returns true if the agent's process runs.
    pub fn is_alive(&self) -> bool {
        ProcessId { pid: self.pid, start: self.pid_start }.is_alive()
    }

    /// Returns the number of the node.
    pub fn node(&self) -> Result<u32> {
        let name = self.node_dir.file_name().and_then(|name| name.to_str());
        let none = || {
            Fault::new(Errno::EINVAL, format!("{} is not the directory of a node", self.node_dir.display()))
        };
        name.and_then(node_of_dir).ok_or_else(none)
    }

    /// Returns true if nothing else of the agent is left: its process has exited, and its directory is missing, while `place` is
    /// the directory that the agent saw.
    pub fn is_gone(&self) -> bool {
        !self.is_alive()
            && numbers(&self.place).is_ok_and(|found| found == self.place_id)
            && matches!(self.node_dir.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound)
    }

    /// Writes the record.
    pub fn write(&self, device: &Path) -> Result<()> {
        write_json(&device.join(OWNER_FILE), self)
    }

    /// Reads the record; `None` if there is none.
    pub fn read(device: &Path) -> Result<Option<Self>> {
        read_json(&device.join(OWNER_FILE))
    }
}

fn numbers(path: &Path) -> Result<(u64, u64)> {
    let found = path
        .metadata()
        .map_err(|error| Fault::from_os(format_args!("stat of {}", path.display()), &error))?;
    Ok((found.dev(), found.ino()))
}

/// Writes a file atomically.
fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_and(path, value, |_| Ok(()))
}

/// Writes a file atomically and durably.
pub(super) fn write_durably(path: &Path, value: &impl Serialize) -> Result<()> {
    write_and(path, value, File::sync_all)?;
    path.parent().map_or(Ok(()), sync_directory)
}

fn write_and(
    path: &Path,
    value: &impl Serialize,
    before_rename: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<()> {
    let failed = |error| Fault::from_os(format_args!("writing {}", path.display()), &error);
    let text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    let new = path.with_extension("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        before_rename(&file)?;
        std::fs::rename(&new, path)
    };
    write().map_err(failed)
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let failed = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let file = match owned::open_regular(path, OFlags::RDONLY, Mode::empty()) {
        Err(fault) if fault.errno == Errno::ENOENT => return Ok(None),
        opened => File::from(opened?),
    };
    let text = std::io::read_to_string(file).map_err(failed)?;
    serde_json::from_str(&text).map(Some).map_err(|error| failed(error.into()))
}
