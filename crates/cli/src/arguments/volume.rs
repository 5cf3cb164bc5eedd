//! The options of `tameike volume`.

use super::job::DeviceChoice;
use super::{AddedNodes, JobOptions, RestartedNodes};
use crate::settings::capacity::Capacity;
use crate::settings::size;
use crate::settings::volume::{OwnedVolume, VolumeName};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use tameike_agent::control::FabricChoice;
use tameike_core::CoreSet;

/// `tameike volume`
#[derive(Debug, Subcommand)]
pub enum VolumeAction {
    /// Create the stores of a volume on its nodes
    #[command(after_long_help = CREATE_LONG_HELP)]
    Create(Box<VolumeCreateArguments>),
    /// Start the agents of a volume in the background
    #[command(after_long_help = START_LONG_HELP)]
    Start(VolumeChoice),
    /// Write what programs have written to the stores, and end the agents
    Stop(VolumeChoice),
    /// Show the nodes of a volume: capacity, copies, failed nodes; without NAME, list all volumes
    Status(VolumeStatusArguments),
    /// Add nodes to a running volume with replicas: its data spreads over them, and programs go on
    Grow(VolumeGrowArguments),
    /// Remove nodes from a running volume with replicas: their data moves to the others first
    Shrink(VolumeShrinkArguments),
    /// Restart the agents of nodes, one after another, to run a new version of tameike, or after they have failed
    Restart(VolumeRestartArguments),
    /// Mount a running volume on this host, for your programs
    #[command(after_long_help = MOUNT_LONG_HELP)]
    Mount(VolumeMountArguments),
    /// Unmount a volume on this host
    Unmount(VolumeUnmountArguments),
    /// Remove a stopped volume with all its data
    Remove(VolumeRemoveArguments),
}

/// Selects a volume.
#[derive(Clone, Debug, Args)]
pub struct VolumeChoice {
    /// The volume: 1 to 25 of a-z, 0-9 and '-'
    #[arg(value_name = "NAME")]
    pub name: VolumeName,
}

/// `tameike volume create`
#[derive(Debug, Args)]
#[group(id = "places", args = ["local", "hosts", "hostfile"], required = true, multiple = false)]
pub struct VolumeCreateArguments {
    #[command(flatten)]
    pub volume: VolumeChoice,
    /// Use N nodes, all on this host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub local: Option<u32>,
    /// Use a node on each of these hosts, over ssh
    #[arg(long, value_name = "A,B,...")]
    pub hosts: Option<String>,
    /// Use a node on each host listed in FILE, as in `tameike run`. Hosts with `device=no` only attach programs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub hostfile: Option<PathBuf>,
    /// Directory of a local disk on each host, which gets the store tameike-volume-UID-NAME-NODE
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub device: PathBuf,
    /// Capacity of each node [default: 4/5 of the free disk space, divided among the nodes of the host]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub capacity: Option<u64>,
    /// Keep each file and name on N nodes, 1 to 3. With one, the volume needs all nodes, and nodes cannot be added [default: 1]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u32>,
    /// Memory of each agent for buffers [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// Transport between nodes, as in `tameike run` [default: auto]
    #[arg(long, value_name = "auto|tcp|ofi[:PROVIDER]")]
    pub fabric: Option<FabricChoice>,
    /// Bind each agent to these cores of its host [default: no binding]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoreSet>,
    /// Read settings for other hosts (ssh, remote-program, start-limit) from FILE (TOML)
    #[arg(long, value_name = "FILE", env = "TAMEIKE_CONFIG", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

impl VolumeCreateArguments {
    /// The options of a job that serves the volume.
    pub fn job_options(&self) -> JobOptions {
        JobOptions {
            local: self.local,
            hosts: self.hosts.clone(),
            hostfile: self.hostfile.clone(),
            device: Some(DeviceChoice::Directory(self.device.clone())),
            capacity: self.capacity.map(|total| Capacity { total: Some(total), ..Capacity::default() }),
            replicas: self.replicas,
            memory: self.memory,
            fabric: self.fabric,
            cores: self.cores.clone(),
            config: self.config.clone(),
            job: Some(self.volume.name.job()),
            ..JobOptions::default()
        }
    }
}

/// `tameike volume status`
#[derive(Debug, Args)]
pub struct VolumeStatusArguments {
    /// The volume [default: all of this user, one line each]
    #[arg(value_name = "NAME")]
    pub name: Option<VolumeName>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// `tameike volume grow`
#[derive(Debug, Args)]
pub struct VolumeGrowArguments {
    #[command(flatten)]
    pub volume: VolumeChoice,
    #[command(flatten)]
    pub added: AddedNodes,
}

/// `tameike volume shrink`
#[derive(Debug, Args)]
pub struct VolumeShrinkArguments {
    #[command(flatten)]
    pub volume: VolumeChoice,
    /// The numbers of the nodes: K,L,...
    #[arg(long, value_name = "LIST", required = true, value_delimiter = ',')]
    pub nodes: Vec<u32>,
}

/// `tameike volume restart`
#[derive(Debug, Args)]
pub struct VolumeRestartArguments {
    #[command(flatten)]
    pub volume: VolumeChoice,
    #[command(flatten)]
    pub restarted: RestartedNodes,
    /// Create new stores on nodes that have failed and have lost theirs. The other nodes copy their data to them
    #[arg(long)]
    pub new_store: bool,
}

/// `tameike volume remove`
#[derive(Debug, Args)]
pub struct VolumeRemoveArguments {
    #[command(flatten)]
    pub volume: VolumeChoice,
    /// Forget the volume even if the stores of some nodes cannot be removed, because their hosts are gone
    #[arg(long)]
    pub force: bool,
}

/// `tameike volume mount`
#[derive(Debug, Args)]
pub struct VolumeMountArguments {
    /// The volume, of which an agent runs on this host: NAME of this user, or OWNER:NAME of another one
    #[arg(value_name = "[OWNER:]NAME")]
    pub volume: OwnedVolume,
    /// The directory on which to mount it
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// `tameike volume unmount`
#[derive(Debug, Args)]
pub struct VolumeUnmountArguments {
    /// The directory on which the volume is mounted
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

const MOUNT_LONG_HELP: &str = "\
The agent of the volume on this host serves the mount, until it is unmounted. When
that agent stops or fails, calls on the mount fail with ENOTCONN: unmount it, and
mount the volume again.

Only you can enter the mount (all users, if root mounts). The permissions of files
decide what you may read and change; the owner of a new volume has to give others a
directory: chmod 1777 DIR.

Examples:
  tameike volume mount data /tmp/data
  tameike volume mount alice:data /tmp/data     the volume of another user
  tameike volume unmount /tmp/data";

const CREATE_LONG_HELP: &str = "\
A volume is a file system on local disks of several hosts that outlives jobs. Its
agents are processes of its owner, without root. Other users attach to it as well:
permissions are those of its files, and a new volume belongs to its owner.

Examples:
  tameike volume create data --hosts fs1,fs2,fs3 --device /scratch --replicas 2
  tameike volume start data
  tameike volume mount data /tmp/data
  tameike run --volume data -- ./app      with the volume in $TAMEIKE_VOLUME";

const START_LONG_HELP: &str = "\
The agents run until `tameike volume stop`, also after logout. After they were killed,
or all hosts lost power, start it again: everything that fsync had acknowledged is
there, and the copies are compared in the background. A volume with replicas also
starts if nodes are missing, as long as each part has a copy.

The agents end with the process on this host that controls them.";
