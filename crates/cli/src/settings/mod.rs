//! Builds the plan of a job from options and configuration, before anything is started.

mod batch;
pub mod capacity;
pub mod config;
pub mod hostfile;
pub(crate) mod size;
pub mod volume;

use crate::arguments::{DeviceChoice, JobOptions};
use crate::mirror::target::MirrorTarget;
use crate::place::base;
use crate::report;
use capacity::Capacity;
use hostfile::HostSpec;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tameike_agent::MEMORY_MIN;
use tameike_agent::control::{Aggregate, FabricChoice};
use tameike_core::limits::NODES_MAX;
use tameike_core::{CoreSet, Errno, Fault, HomeMap, JobId, NodeId, NodeInfo, Result};
use tameike_io::os::process;
use volume::{OwnedVolume, VolumeId};

/// Seconds that a drain may take after the request to end the job.
const GRACE_S: u64 = 20;
/// Seconds in which agents must be ready.
const START_LIMIT_S: u64 = 60;
/// Memory of an agent for buffers.
const MEMORY: u64 = 512 << 20;
/// Default command for other hosts. The keepalive options end the ssh of a silent host within a minute, which the driver
/// notices.
const SSH: [&str; 9] = [
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=30",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=3",
];
/// Variable with the ssh command for other hosts.
const SSH_VARIABLE: &str = "TAMEIKE_SSH";
/// Parent directory of RAM devices.
pub const RAM_DIR: &str = "/dev/shm";

/// Returns the prefix of the names of this user's device directories.
pub fn device_prefix() -> String {
    format!("tameike-{}-", process::user())
}

/// The complete settings of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Its name.
    pub job: JobId,
    /// Its nodes, in the order of their numbers.
    pub nodes: Vec<HostSpec>,
    /// The directory behind the cache view.
    pub shared_dir: Option<PathBuf>,
    /// Where the shared directory is mirrored.
    #[serde(default)]
    pub mirror: Option<MirrorTarget>,
    /// The file for the receipt of the mirror.
    #[serde(default)]
    pub mirror_receipt: Option<PathBuf>,
    /// The volume that the job serves, if it serves one.
    #[serde(default)]
    pub volume: Option<VolumeId>,
    /// The volume that each node mounts for programs of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<OwnedVolume>,
    /// Settings of packing.
    #[serde(default)]
    pub aggregate: Aggregate,
    /// Capacity of the views on each node.
    pub capacity: Capacity,
    /// Parent directory of the device directories.
    pub device_root: PathBuf,
    /// Memory of each agent for buffers, in bytes.
    pub memory: u64,
    /// Memory of each agent for shared memory regions, in bytes. `None` takes a part of the free memory.
    pub region_memory: Option<u64>,
    /// Transport between agents.
    #[serde(default)]
    pub fabric: FabricChoice,
    /// Connections that each node keeps open; `None` stands for the default.
    #[serde(default)]
    pub connections: Option<u32>,
    /// Number of nodes that have each file and name.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Disables reads from the memory of nodes other than the home.
    #[serde(default)]
    pub no_peer_reads: bool,
    /// Keeps mappings and write calls to one page coherent.
    #[serde(default)]
    pub coherent_mmap: bool,
    /// The cores to which each agent is bound, if any.
    #[serde(default)]
    pub cores: Option<CoreSet>,
    /// Disables the ring: agents serve programs through FUSE only.
    #[serde(default)]
    pub no_ring: bool,
    /// Drains read every file back and compare it.
    pub verify: bool,
    /// The command continues when an agent fails.
    pub keep_going: bool,
    /// Seconds that a drain may take after the request to end the job.
    pub grace_s: u64,
    /// Seconds in which agents must be ready.
    pub start_limit_s: u64,
    /// The ssh command for other hosts, with its options.
    pub ssh: Vec<String>,
    /// Path of `tameike` on other hosts.
    pub remote_program: PathBuf,
    /// The user's directory for jobs.
    pub base_dir: PathBuf,
}

fn aggregate(options: &JobOptions) -> Aggregate {
    let Aggregate { choice, size_max, .. } = Aggregate::default();
    Aggregate {
        choice: options.aggregate.unwrap_or(choice),
        size_max: options.aggregate_max.unwrap_or(size_max),
        by_others: options.packed_by_others,
    }
}

impl JobPlan {
    /// Builds the plan.
    pub fn new(options: &JobOptions, keep_going: bool) -> Result<Self> {
        let config = options.config.as_deref().map(config::read).transpose()?.unwrap_or_default();
        let options = config.complete(options);
        let memory = options.memory.unwrap_or(MEMORY);
        if memory < MEMORY_MIN {
            let least = size::show(MEMORY_MIN);
            return Err(Fault::new(Errno::EINVAL, format!("an agent needs at least {least} of memory")));
        }
        let program = std::env::current_exe()
            .map_err(|error| Fault::from_os("finding the path of this program", &error))?;
        let device_root = match options.device.as_ref().unwrap_or(&DeviceChoice::Ram) {
            DeviceChoice::Ram => RAM_DIR.into(),
            DeviceChoice::Directory(dir) => absolute(dir)?,
        };
        let nodes = nodes(&options)?;
        let replicas = options.replicas.unwrap_or(1);
        check_replicas(&nodes, replicas)?;
        let shared_dir = options.shared.as_deref().map(shared_dir).transpose()?;
        let mirror = mirror(&options, shared_dir.as_deref())?;
        Ok(Self {
            job: options.job.clone().map_or_else(random_job, Ok)?,
            nodes,
            replicas,
            shared_dir,
            mirror,
            mirror_receipt: options.mirror_receipt.as_deref().map(absolute).transpose()?,
            volume: None,
            attached: options.volume.clone(),
            aggregate: aggregate(&options),
            capacity: options.capacity.clone().unwrap_or_default(),
            device_root,
            memory,
            region_memory: options.region_memory,
            fabric: options.fabric.unwrap_or_default(),
            connections: options.connections,
            no_peer_reads: options.no_peer_reads,
            coherent_mmap: options.coherent_mmap,
            cores: options.cores.clone(),
            no_ring: options.no_ring,
            verify: options.verify,
            keep_going: keep_going || config.keep_going.unwrap_or(false),
            grace_s: options.grace.unwrap_or(GRACE_S),
            start_limit_s: config.start_limit.unwrap_or(START_LIMIT_S),
            ssh: ssh(config.ssh.as_deref())?,
            remote_program: config.remote_program.clone().unwrap_or(program),
            base_dir: base::path(),
        })
    }

    /// Returns the device directory of a node.
    pub fn device_dir(&self, node: u32) -> PathBuf {
        let name = match &self.volume {
            Some(volume) => format!("tameike-volume-{}-{}-{node}", process::user(), volume.name),
            None => format!("{}{}-{node}", device_prefix(), self.job),
        };
        self.device_root.join(name)
    }

    /// Returns true if the devices are in memory.
    pub fn is_ram(&self) -> bool {
        self.device_root == Path::new(RAM_DIR)
    }
}

/// Returns the nodes that are added to a running job: `local` on this host, those of the list, or those of the file.
pub fn added_nodes(
    local: Option<u32>,
    hosts: Option<&str>,
    hostfile: Option<&Path>,
) -> Result<Vec<HostSpec>> {
    match (hosts, hostfile) {
        (Some(hosts), _) => hostfile::parse_list(hosts),
        (None, Some(file)) => hostfile::read(file),
        (None, None) => Ok(vec![HostSpec::new("localhost"); local.unwrap_or(1).min(NODES_MAX) as usize]),
    }
}

/// Returns the nodes that the options list.
fn nodes(options: &JobOptions) -> Result<Vec<HostSpec>> {
    let nodes = if let Some(hosts) = &options.hosts {
        hostfile::parse_list(hosts)?
    } else if let Some(file) = &options.hostfile {
        hostfile::read(file)?
    } else {
        if options.local.is_none()
            && let Some(warning) = batch::warning(|name| std::env::var(name).ok())
        {
            report::say(format_args!("{warning}"));
        }
        vec![HostSpec::new("localhost"); options.local.unwrap_or(1).min(NODES_MAX + 1) as usize]
    };
    if nodes.is_empty() || nodes.len() > NODES_MAX as usize {
        return Err(Fault::new(Errno::EINVAL, format!("a job has 1 to {NODES_MAX} nodes")));
    }
    if !nodes.iter().any(|node| node.device) {
        let message = "every node of the hostfile has device=no: at least one node needs a device";
        return Err(Fault::new(Errno::EINVAL, message));
    }
    Ok(nodes)
}

/// Checks that the nodes can have so many replicas.
fn check_replicas(nodes: &[HostSpec], replicas: u32) -> Result<()> {
    if replicas == 1 {
        return Ok(());
    }
    let info = |(id, spec): (u32, &HostSpec)| NodeInfo {
        id: NodeId(id),
        host: spec.host.clone(),
        address: String::new(),
        group: spec.group,
        device: spec.device,
    };
    let nodes: Vec<_> = (0..).zip(nodes).map(info).collect();
    let map = HomeMap::initial(&nodes, replicas);
    map.map(drop).map_err(|wrong| Fault::new(Errno::EINVAL, format!("--replicas: {wrong}")))
}

fn one() -> u32 {
    1
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| Fault::from_os(format_args!("finding the directory {}", path.display()), &error))
}

/// Returns the mirror of the job.
fn mirror(options: &JobOptions, shared_dir: Option<&Path>) -> Result<Option<MirrorTarget>> {
    let Some(target) = &options.mirror else { return Ok(None) };
    let dir = shared_dir.ok_or_else(|| {
        Fault::new(Errno::EINVAL, "--mirror needs a directory that is mirrored: add --shared DIR")
    })?;
    report::receipt::check_place(options.mirror_receipt.as_deref())?;
    target.clone().resolve(dir).map(Some)
}

/// Returns the ssh command and the program on other hosts, of a configuration file or the defaults.
pub fn remote(config: Option<&Path>) -> Result<(Vec<String>, PathBuf)> {
    let config = config.map(config::read).transpose()?.unwrap_or_default();
    let program = match config.remote_program {
        Some(program) => program,
        None => std::env::current_exe()
            .map_err(|error| Fault::from_os("finding the path of this program", &error))?,
    };
    Ok((ssh(config.ssh.as_deref())?, program))
}

/// Resolves links of the shared directory, so that all nodes and a later `recover` use the same path.
pub fn shared_dir(path: &Path) -> Result<PathBuf> {
    let doing = || format!("shared directory {}", path.display());
    let real = path.canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("{} does not exist; create it first: mkdir -p {}", doing(), path.display());
            Fault::new(Errno::ENOENT, message)
        }
        _ => Fault::from_os(doing(), &error),
    })?;
    if !real.is_dir() {
        return Err(Fault::from(Errno::ENOTDIR).context(doing()));
    }
    Ok(real)
}

/// Returns the words of the ssh command before the host name.
fn ssh(configured: Option<&[String]>) -> Result<Vec<String>> {
    let words = match (std::env::var(SSH_VARIABLE), configured) {
        (Ok(text), _) => text.split_whitespace().map(str::to_owned).collect(),
        (Err(_), Some(words)) => words.to_vec(),
        (Err(_), None) => SSH.map(str::to_owned).to_vec(),
    };
    if words.is_empty() {
        return Err(Fault::new(Errno::EINVAL, format!("{SSH_VARIABLE} (or the key ssh) names no program")));
    }
    Ok(words)
}

fn random_job() -> Result<JobId> {
    let digits: String = process::random_bytes::<4>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    JobId::new(&format!("job-{digits}")).map_err(|wrong| Fault::new(Errno::EINVAL, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_defaults() {
        let plan = JobPlan::new(&JobOptions::default(), false).expect("defaults are good");
        assert_eq!((plan.nodes.len(), plan.grace_s, plan.memory), (1, GRACE_S, MEMORY));
        assert!(plan.is_ram() && plan.nodes[0].is_here());
        let again = JobPlan::new(&JobOptions::default(), false).expect("defaults are good");
        assert_ne!(plan.job, again.job);
    }

    #[test]
    fn invalid_options_are_refused() {
        let with = |change: fn(&mut JobOptions)| {
            let mut options = JobOptions::default();
            change(&mut options);
            JobPlan::new(&options, false).expect_err("bad").to_string()
        };
        assert!(with(|o| o.local = Some(0)).contains("1 to 16384 nodes"));
        assert!(with(|o| o.local = Some(u32::MAX)).contains("1 to 16384 nodes"));
        assert!(with(|o| o.replicas = Some(2)).contains("--replicas: 2 replicas need as many nodes"));
        for replicas in [0, 4] {
            let options = JobOptions { local: Some(8), replicas: Some(replicas), ..JobOptions::default() };
            let fault = JobPlan::new(&options, false).expect_err("bad").to_string();
            assert!(fault.contains("1 to 3 replicas"), "{fault}");
        }
        assert!(with(|o| o.memory = Some(1)).contains("at least 48.0 MiB"));
        assert!(
            with(|o| o.shared = Some("/no/such/dir".into()))
                .contains("create it first: mkdir -p /no/such/dir")
        );
        assert!(with(|o| o.shared = Some("/etc/hostname".into())).contains("not a directory"));
    }
}
