//! Protocol between a job's driver and an agent: JSON lines on the agent's standard input and output.
//!
//! The first line in is [`AgentStart`], the first line out is [`AgentReply::Ready`] (or `Failed`). After that each line in is an
//! [`AgentCommand`], and each line out an [`AgentAnswer`] with the command's number. End of file on standard input means that the
//! driver has ended. The agent of a volume then waits for the next driver, which connects to it in the same way. The secret of the job travels only here: never on a command line, in an environment or in a file that others
//! can read.
//!
//! The `cli` crate owns the process (namespaces, mounts, directories, pipes) and drives an implementation of [`AgentControl`].

mod aggregate;
mod fabric;
mod lease;
mod undrained;

pub use aggregate::{Aggregate, AggregateChoice};
pub use fabric::FabricChoice;
pub use lease::{LeaseAnswer, LeaseMessage};
pub use undrained::{Progress, Undrained};

use crate::files::{FileLine, FileSelection};
use crate::keepers::{Keeper, Kept, KeptRecord, RecordVersion, Term};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_core::changes::Changes;
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{CopyReport, NodeStatus, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{CoreSet, Fault, HomeMap, JobId, NodeId, NodeInfo, Result, View};

/// Version of the protocol, which driver and agent must share.
pub const CONTROL_VERSION: u16 = 2;

/// Interval of progress reports.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Secret of a job, serialized in hexadecimal. `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl TryFrom<String> for Secret {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || "a secret is 64 hexadecimal digits".to_owned();
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Purpose of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentMode {
    /// Serve a new job on an empty device directory, with the views mounted.
    Serve,
    /// Finish the drain of a failed job from its device directory, without mounts.
    Recover,
    /// Serve the job-shared view of a volume from its store, which stays when the agent ends, to programs that attach to it.
    Volume,
}

/// Device of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStart {
    /// Directory of this agent only, existing, and empty in [`AgentMode::Serve`]. The `cli` crate creates it, and removes it after
    /// [`AgentControl::stop`] if no dirty data is left, unless it has the store of a volume.
    pub dir: PathBuf,
    /// True if the directory is in memory, so that fsync is unnecessary.
    pub ram: bool,
}

/// Configuration of an agent. [`AgentRequest::Join`] adds the other agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStart {
    /// [`CONTROL_VERSION`] of the driver.
    pub version: u16,
    /// Name of the job.
    pub job: JobId,
    /// The node's number.
    pub node: NodeId,
    /// Purpose of the agent.
    pub mode: AgentMode,
    /// Name of the volume in [`AgentMode::Volume`].
    #[serde(default)]
    pub volume: Option<String>,
    /// Secret of the job.
    pub secret: Secret,
    /// The user's directory for jobs (`/tmp/tameike-UID`), the same path on every host.
    pub base_dir: PathBuf,
    /// `address:port` at which the fabric listens; port 0 selects a free one.
    pub listen: String,
    /// Transport to other agents.
    pub fabric: FabricChoice,
    /// Limit of connections, if not the default.
    #[serde(default)]
    pub connections: Option<u32>,
    /// Disables the peer cache.
    #[serde(default)]
    pub no_peer_reads: bool,
    /// Allows mappings and calls to write to one page at the same time.
    #[serde(default)]
    pub coherent_mmap: bool,
    /// Cores to which the agent's threads are bound; `None` for no binding.
    pub cores: Option<CoreSet>,
    /// Replicas of each home.
    #[serde(default = "one")]
    pub replicas: u32,
    /// The device; `None` on a node that uses its group's.
    pub device: Option<DeviceStart>,
    /// Capacities of the views on this node in bytes, in the order of [`View::ALL`]; their sum is the size of the device.
    pub capacity: [u64; 3],
    /// Memory for frames, in bytes.
    pub memory: u64,
    /// Memory for the pages of shared memory regions, in bytes.
    pub region_memory: u64,
    /// Directory of the shared file system behind the cache view.
    pub shared_dir: Option<PathBuf>,
    /// Packing of files in the shared directory.
    #[serde(default)]
    pub aggregate: Aggregate,
    /// Record the changes of the shared directory for a mirror ([`AgentRequest::Changes`]).
    #[serde(default)]
    pub records_changes: bool,
    /// Known damage of the device directory of a recovered job, in plain words. This agent and later ones report it in
    /// [`AgentControl::damage`].
    #[serde(default)]
    pub damage: Vec<String>,
}

fn one() -> u32 {
    1
}

/// A mounted view.
#[derive(Debug)]
pub struct ViewFrontend {
    /// The view.
    pub view: View,
    /// Open `/dev/fuse` of the mount, from which `FUSE_INIT` can be read. `None` for a node-local view in a tmpfs, which the kernel
    /// serves.
    pub fuse: Option<OwnedFd>,
    /// Mount point, as programs see it.
    pub path: PathBuf,
}

/// Input of [`AgentControl::start`].
#[derive(Debug)]
pub struct StartInput {
    /// Configuration from the driver.
    pub start: AgentStart,
    /// Mounted views: only in [`AgentMode::Serve`], no cache view without a shared directory.
    pub frontends: Vec<ViewFrontend>,
    /// Socket of the ring; only in [`AgentMode::Serve`].
    pub ring: Option<PathBuf>,
}

/// One command to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCommand {
    /// Number of the command, which replies repeat.
    pub id: u64,
    /// The request.
    pub request: AgentRequest,
}

/// Request of a driver to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentRequest {
    /// Connect to the agents of the job, and serve the views. Reply: `Joined`.
    Join {
        /// All nodes, in the order of their numbers.
        nodes: Vec<NodeInfo>,
        /// The home map; `None` for the first one of a new job.
        map: Option<HomeMap>,
    },
    /// Flush every file that this node coordinates, or, for a volume, what programs have written. Replies: any number of `Progress`, then
    /// `Receipt`.
    Drain {
        /// Read all files back from the shared file system and compare.
        verify: bool,
    },
    /// List the files that this node coordinates and that are not drained yet. Reply: `Receipt`.
    Undrained,
    /// Write the journaled data of files that were removed from the shared directory below another one, and remove it from the journal.
    /// Reply: `Receipt` of these files.
    SaveRemoved {
        /// The directory.
        dir: PathBuf,
    },
    /// Report the state of the agent. Reply: `Status`.
    Status,
    /// Load files of the shared directory, and all files below directories, into the job. Replies: any number of `Warming`, then
    /// `Warmed`.
    Warm {
        /// Paths relative to the shared directory.
        paths: Vec<Vec<u8>>,
    },
    /// Cancel an earlier `Warm`. Reply: `Done`.
    CancelWarm {
        /// Number of the `Warm` command.
        command: u64,
    },
    /// Report the cached data of files. Reply: `Files`.
    Files(FileSelection),
    /// Renew the agent's lease of the home map. The agent answers at once. Reply: `Leased`.
    Lease(LeaseMessage),
    /// Report changes of the shared directory for the mirror of the job, each once. Reply: `Changes`.
    Changes {
        /// The mirror has all changes of this agent up to this number.
        acknowledged: u64,
    },
    /// Measure the network between this node and another one. Reply: `Measured`.
    Measure(Order),
    /// Compare the copies of the homes that this node serves, and repair them. Reply: `CopiesChecked`.
    CheckCopies,
    /// Serve only this driver of the volume from now on, and refuse those of earlier terms. Reply: `Promised`.
    Promise {
        /// The term of the driver.
        term: Term,
        /// Only say whether the agent would promise the term, as in a pre-vote of Raft: a driver that most agents refuse must not make others
        /// refuse the one that they have.
        is_trial: bool,
    },
    /// Keep the record of the volume, in the form of its driver. Reply: `Kept`.
    Keep(Box<KeptRecord<String>>),
    /// Send a signal to a command that was started in this node's namespaces. Reply: `Done`.
    Signal {
        /// Name under which the command was entered.
        command: String,
        /// Number of the signal.
        signal: i32,
    },
    /// End every program in this node's namespaces. Reply: `CommandsEnded`.
    EndCommands,
    /// Unmount, end, and remove the node's files, except a journal with dirty data. Replies: any number of `Stopping` and `Changes`, then
    /// `Stopped`, the last line.
    Stop {
        /// Time for flushes in progress, in milliseconds.
        grace_ms: u64,
        /// True after an incomplete drain: the node must also keep a journal that names another node's dirty data.
        keep: bool,
        /// Other nodes have all that this node has: remove dirty data too.
        discard: bool,
        /// The node that is the packer and ends packing, in a job with replicas.
        packer: Option<NodeId>,
    },
}

/// One line from an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAnswer {
    /// Number of the command, or 0 for the start.
    pub id: u64,
    /// The reply.
    pub reply: AgentReply,
}

/// Reply of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentReply {
    /// The agent has started and waits for `Join`.
    Ready {
        /// The agent's process.
        node: NodeRecord,
        /// `address:port` of the fabric endpoint.
        address: String,
        /// The agent as a keeper of the record of its volume; `None` if it has no store.
        keeper: Option<Keeper>,
        /// The secret of the job, if the agent has joined it before: another driver has started it.
        running: Option<Secret>,
    },
    /// The agent has reached its peers and serves.
    Joined {
        /// As [`AgentControl::damage`].
        damage: Vec<String>,
    },
    /// The command is complete.
    Done,
    /// All programs in the node's namespaces have ended.
    CommandsEnded {
        /// Files that programs outside the job wrote below the mount points, in plain words.
        strays: Vec<String>,
    },
    /// Progress of the drain.
    Progress(Progress),
    /// The drain has ended.
    Receipt(Receipt),
    /// State of the agent.
    Status(Box<NodeStatus>),
    /// Progress of loading.
    Warming(Warmed),
    /// Loading has ended.
    Warmed(Warmed),
    /// Cached data of files.
    Files(Vec<FileLine>),
    /// The answer to `Lease`.
    Leased(LeaseAnswer),
    /// Changes of the shared directory.
    Changes(Changes),
    /// Result of a network measurement.
    Measured(Outcome),
    /// The copies are compared.
    CopiesChecked(CopyReport),
    /// The agent has promised a term.
    Promised {
        /// The agent as a keeper; `None` if it has no store.
        keeper: Option<Keeper>,
        /// What it knew before.
        kept: Box<Kept<String>>,
    },
    /// The agent keeps a record of the volume.
    Kept {
        /// The agent as a keeper; `None` if it has no store, and keeps the record in memory.
        keeper: Option<Keeper>,
        /// The version of the record.
        version: RecordVersion,
    },
    /// The agent serves another driver, of a later term, and has not carried the command out.
    Superseded {
        /// The host of that driver.
        host: String,
    },
    /// The agent is stopping, and has made progress since the last report.
    Stopping,
    /// The agent has stopped.
    Stopped(Undrained),
    /// The command failed. The agent continues, except after a failed start.
    Failed(Fault),
}

/// Identifies the process of an agent for later commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Number of the node.
    pub node: NodeId,
    /// Process ID on its host.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, which distinguishes it from later processes with the same ID.
    pub pid_start: u64,
    /// Namespaces of the agent.
    pub isolation: Isolation,
    /// Mount points by view, as programs on the node see them.
    pub mounts: Vec<(View, PathBuf)>,
    /// Mount point of the volume that the job uses, as programs on the node see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<PathBuf>,
}

/// Isolation of a node's mounts from other processes of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// A mount namespace (the agent runs as root).
    MountNamespace,
    /// A user and a mount namespace.
    UserNamespace,
    /// None: `fusermount3` mounts are visible to all processes of the host, but only the user can enter them.
    None,
}

/// Control of an agent by the `cli` crate. Methods block; the caller uses a thread for each, and may call `status` while `drain` runs.
pub trait AgentControl: Send + Sync + Sized + 'static {
    /// Opens the device and listens. Call it after namespaces and mounts are set up, as it starts threads.
    fn start(input: StartInput) -> Result<Self>;

    /// Returns `address:port` of the fabric endpoint, with the actual port.
    fn address(&self) -> String;

    /// Connects to the other agents and serves the views, with the first home map or a later one. Returns when requests of programs will be
    /// served.
    ///
    /// # Errors
    /// Names a peer that was not reached, or did not know the secret.
    fn join(&self, nodes: Vec<NodeInfo>, map: Option<HomeMap>) -> Result<()>;

    /// Flushes every file that this node coordinates, and reports progress. The receipt also reports failed files and agents.
    fn drain(&self, verify: bool, progress: &mut dyn FnMut(Progress)) -> Receipt;

    /// Lists the files that this node coordinates and that are not drained yet.
    fn undrained(&self) -> Receipt {
        Receipt::default()
    }

    /// Writes the journaled data of files that were removed from the shared directory below `dir`, under their paths, and removes it from
    /// the journal. The receipt lists these files, with errors.
    fn save_removed(&self, _dir: &Path) -> Receipt {
        Receipt::default()
    }

    /// Describes damage of the journal in plain words; empty if it is intact.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reports the state of the agent.
    fn status(&self) -> Result<NodeStatus>;

    /// Loads files of the shared directory, and all files below directories, into the job. Reports progress; `progress` can stop it.
    ///
    /// # Errors
    /// The job has no shared directory. The result counts files that could not be read.
    fn warm(
        &self,
        paths: Vec<Vec<u8>>,
        progress: &mut dyn FnMut(Warmed) -> ControlFlow<()>,
    ) -> Result<Warmed>;

    /// Reports the cached data of files on all nodes.
    ///
    /// # Errors
    /// `EINVAL`: too many files.
    fn files(&self, selection: FileSelection) -> Result<Vec<FileLine>>;

    /// Takes a message of the authority of the home map. Does not block.
    ///
    /// # Errors
    /// The agent has not joined its job yet.
    fn renew_lease(&self, message: LeaseMessage) -> Result<LeaseAnswer>;

    /// Forgets the changes of the shared directory up to `acknowledged`, which the mirror of the job has, and returns later ones that were
    /// not reported before.
    fn changes(&self, _acknowledged: u64) -> Changes {
        Changes::default()
    }

    /// Measures the network between this node and another one.
    ///
    /// # Errors
    /// The order is invalid, the other node is not reached, or received data differs from sent data.
    fn measure(&self, order: Order) -> Result<Outcome>;

    /// Compares the copies of the homes that this node serves, and repairs them.
    ///
    /// # Errors
    /// The agent has not joined its job yet.
    fn check_copies(&self) -> Result<CopyReport> {
        Ok(CopyReport::default())
    }

    /// Records files of the cache view that programs have open for writing as interrupted. Called when the driver has failed, before these
    /// programs are ended.
    fn mark_interrupted(&self) {}

    /// The programs of this node are about to be ended: their calls wait no more for other nodes that an excluded node cannot reach.
    fn end_waits(&self) {}

    /// Stops the agent. Flushes in progress may take `grace`; data that is dirty then stays in the journal. `drained` means that no
    /// node has dirty data. In a job with replicas, `packer` is the node that ends packing. Call it once; other calls in progress return soon
    /// after. It calls `stopping` as it makes progress.
    ///
    /// # Errors
    /// The journal could not be closed; the caller must keep the device directory.
    fn stop(
        &self,
        grace: Duration,
        drained: bool,
        packer: Option<NodeId>,
        stopping: &mut dyn FnMut(),
    ) -> Result<Undrained>;

    /// Inspects the device directory of a failed agent, without changing its dirty data.
    ///
    /// # Errors
    /// The directory cannot be read; the caller must keep it.
    fn inspect(device_dir: &Path) -> Result<Undrained>;
}

#[cfg(test)]
mod tests;
