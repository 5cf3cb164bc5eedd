//! The records that jobs and nodes leave in their directories, for who comes later: other commands, the
//! janitor, `recover`. No secret stands in them.

use super::base::{self, Base, node_dir, node_of_dir, nodes_in};
use super::tree;
use crate::settings::JobPlan;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tameike_agent::control::NodeRecord;
use tameike_core::{Errno, Fault, JobId, NodeId, Result};
use tameike_io::os::owned;
use tameike_io::os::process::{self, ProcessId};

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It starts or runs, or its driver was killed while it did.
    Running,
    /// It has ended, but something is not on the shared file system.
    CutOff,
}

/// The record of a job, `job.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// As it was planned.
    pub plan: JobPlan,
    /// What became of it.
    pub state: JobState,
    /// When it was started, in seconds since 1970-01-01 UTC.
    pub started: i64,
    /// Process of the driver.
    pub driver_pid: u32,
    /// Start time of that process.
    pub driver_start: u64,
    /// The user namespace of the driver, from which nodes can be entered.
    pub driver_namespace: String,
    /// The nodes that are ready, in the order of their numbers.
    pub nodes: Vec<NodeRecord>,
    /// What is not known any more of a job whose directory was lost, in plain words.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl JobRecord {
    /// The record of a job that this process starts.
    ///
    /// # Errors
    /// `/proc` is not there.
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
            unknown: Vec::new(),
        })
    }

    /// The record as other hosts can use it: this one stands in it with its name.
    pub fn seen_from_elsewhere(&self) -> Self {
        let mut record = self.clone();
        let here = record.plan.nodes.iter_mut().filter(|node| node.is_here());
        here.for_each(|node| node.host = process::host_name());
        record
    }

    /// Whether the driver lives.
    pub fn driver_is_alive(&self) -> bool {
        self.driver().is_alive()
    }

    /// The process that runs the job.
    pub fn driver(&self) -> ProcessId {
        ProcessId { pid: self.driver_pid, start: self.driver_start }
    }

    /// Whether nodes of the job are on other hosts.
    pub fn has_other_hosts(&self) -> bool {
        self.plan.nodes.iter().any(|node| !node.is_here())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, job_dir: &Path) -> Result<()> {
        write_json(&path(job_dir), self).map_err(base::with_advice)
    }

    /// Reads the record of a job; `None` when it has none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(job_dir: &Path) -> Result<Option<Self>> {
        read_json(&path(job_dir))
    }

    /// Reads the record of a job from its directory, or from that of a node on a host without the driver.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_anywhere(job_dir: &Path) -> Result<Option<Self>> {
        if let Some(record) = Self::read(job_dir)? {
            return Ok(Some(record));
        }
        let nodes = nodes_in(job_dir).into_iter();
        nodes.map(|node| Self::read(&node_dir(job_dir, node))).find_map(Result::transpose).transpose()
    }

    /// All jobs that have a record, with their directories.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(base: &Base) -> Result<Vec<(PathBuf, Self)>> {
        let dirs = base.jobs()?.into_iter().map(|job| base.job_path(&job));
        dirs.filter_map(|dir| Self::read(&dir).transpose().map(|record| Ok((dir, record?)))).collect()
    }
}

fn path(job_dir: &Path) -> PathBuf {
    job_dir.join("job.json")
}

/// The record of a node, `node.json`: made before anything else of the node, so that a crash at any moment
/// leaves nothing that cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// The agent's process and mounts.
    pub record: NodeRecord,
    /// How many nodes the job has.
    pub node_count: u32,
    /// The agent's device directory.
    pub device_dir: Option<PathBuf>,
    /// Whether the device directory has been used and not been given up: then it must be there.
    #[serde(default)]
    pub device_used: bool,
    /// The start of the machine during which the agent ran.
    #[serde(default)]
    pub boot_id: String,
}

impl NodeState {
    /// The agent's process.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.record.pid, start: self.record.pid_start }
    }

    /// What became of a device directory that must be there and is not, in plain words.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn lost_device(&self) -> Result<Option<String>> {
        let Some(device) = self.device_dir.as_ref().filter(|_| self.device_used) else { return Ok(None) };
        // What another user has made there since is not looked into.
        let is_own = owned::is_own_dir(device);
        // A recovery that was cut off may have written its own name there, and nothing else.
        if is_own == Ok(true) && !tree::is_empty_but_for(device, OWNER_FILE)? {
            return Ok(None);
        }
        let why = if let Err(fault) = &is_own {
            &fault.to_string()
        } else if self.boot_id == boot_id() {
            "something else has removed it"
        } else {
            "the machine has been restarted since"
        };
        let node = self.record.node;
        Ok(Some(format!(
            "what {node} had only in {} is lost, it is not there any more: {why}",
            device.display()
        )))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, job_dir: &Path) -> Result<()> {
        let path = node_dir(job_dir, self.record.node.0).join("node.json");
        write_json(&path, self).map_err(base::with_advice)
    }

    /// Reads the record of a node; `None` when it has none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(job_dir: &Path, node: u32) -> Result<Option<Self>> {
        read_json(&node_dir(job_dir, node).join("node.json"))
    }
}

/// Names the user namespace of this process.
pub fn user_namespace() -> String {
    std::fs::read_link("/proc/self/ns/user").map(|link| link.display().to_string()).unwrap_or_default()
}

/// Names this start of the machine.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim_end().to_owned()
}

/// Whose a device directory is; without anything else in it, its data is lost or there was none.
pub const OWNER_FILE: &str = "owner.json";

/// The record in a device directory of whose it is, `owner.json`: with it a directory is known to be needless, and what is in
/// it is recovered, when everything else of its job is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOwner {
    /// The job's name.
    pub job: JobId,
    /// The directory of the node in that of its job.
    pub node_dir: PathBuf,
    /// The directory in which the user's directory for jobs was made, and its numbers on that host: who sees
    /// another directory under its name cannot say what is in it.
    pub place: PathBuf,
    /// Numbers of its device and inode.
    pub place_id: (u64, u64),
    /// Process of the agent.
    pub pid: u32,
    /// Start time of that process.
    pub pid_start: u64,
    /// The job's record, as it was when the agent started.
    pub record: JobRecord,
    /// Whether the job's driver was on this host.
    pub driver_is_here: bool,
}

impl DeviceOwner {
    /// The record for a device directory of this process.
    ///
    /// # Errors
    /// The directory above the user's directory for jobs cannot be looked at.
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

    /// Whether the agent's process lives.
    pub fn is_alive(&self) -> bool {
        ProcessId { pid: self.pid, start: self.pid_start }.is_alive()
    }

    /// The number of the node.
    ///
    /// # Errors
    /// The record does not say it.
    pub fn node(&self) -> Result<u32> {
        let name = self.node_dir.file_name().and_then(|name| name.to_str());
        let none = || Fault::new(Errno::EINVAL, format!("{} is of no node", self.node_dir.display()));
        name.and_then(node_of_dir).ok_or_else(none)
    }

    /// Whether nothing else of the agent is left: its process has ended, and its directory, whose place is the
    /// one that was seen then, is not there.
    pub fn is_gone(&self) -> bool {
        !self.is_alive()
            && numbers(&self.place).is_ok_and(|found| found == self.place_id)
            && matches!(self.node_dir.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound)
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, device: &Path) -> Result<()> {
        write_json(&device.join(OWNER_FILE), self)
    }

    /// Reads the record; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(device: &Path) -> Result<Option<Self>> {
        read_json(&device.join(OWNER_FILE))
    }
}

fn numbers(path: &Path) -> Result<(u64, u64)> {
    let found = path
        .metadata()
        .map_err(|error| Fault::from_os(format_args!("looking at {}", path.display()), &error))?;
    Ok((found.dev(), found.ino()))
}

/// Writes a file whole or not at all.
fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let failed = |error| Fault::from_os(format_args!("writing {}", path.display()), &error);
    let text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    let new = path.with_extension("new");
    std::fs::write(&new, text).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let failed = |error| Fault::from_os(format_args!("reading {}", path.display()), &error);
    let file = match owned::open_regular(path, OFlags::RDONLY, Mode::empty()) {
        Err(fault) if fault.errno == Errno::ENOENT => return Ok(None),
        opened => std::fs::File::from(opened?),
    };
    let text = std::io::read_to_string(file).map_err(failed)?;
    serde_json::from_str(&text).map(Some).map_err(|error| failed(error.into()))
}
