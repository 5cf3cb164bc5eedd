//! How a job's driver starts and steers an agent: JSON lines on the agent's standard input and output.
//!
//! The first line in is [`AgentStart`], the first line out is [`AgentReply::Ready`] (or `Failed`). After
//! that each line in is an [`AgentCommand`], and each line out an [`AgentAnswer`] with the command's number.
//! The end of standard input means that the driver is gone. The secret of the job travels only here: never
//! on a command line, in an environment or in a file that others can read.
//!
//! The command line owns the process (namespaces, mounts, directories, pipes) and drives whatever implements
//! [`AgentControl`]; this room says nothing about how an agent works inside.

mod aggregate;
mod fabric;
mod left;

pub use aggregate::{Aggregate, AggregateChoice};
pub use fabric::FabricChoice;
pub use left::{Left, Progress};

use crate::files::{FileLine, FilesAsked};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{NodeStatus, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{CoreSet, Fault, JobId, NodeId, NodeInfo, Result, View};

/// Version of the lines between driver and agent; both must be of the same.
pub const CONTROL_VERSION: u16 = 1;

/// Time between two reports of progress.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The secret that the agents of a job share; written in hexadecimal, shown to nobody.
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
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What an agent is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentMode {
    /// To serve a new job on an empty device directory, with the views mounted.
    Serve,
    /// To finish the drain of a job that was cut off, from what its device directory holds; without mounts.
    Recover,
}

/// Where an agent keeps data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStart {
    /// A directory of this agent alone; it exists and is empty in [`AgentMode::Serve`]. The command line
    /// makes it and, after [`AgentControl::stop`], removes it when nothing dirty is left.
    pub dir: PathBuf,
    /// Whether the directory lies in memory (DM-1): there is nothing to fsync.
    pub ram: bool,
}

/// Everything an agent must know to start, except the other agents: those come with [`AgentRequest::Join`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStart {
    /// [`CONTROL_VERSION`] of the driver.
    pub version: u16,
    /// The job.
    pub job: JobId,
    /// The node's number.
    pub node: NodeId,
    /// What to start for.
    pub mode: AgentMode,
    /// Shared by all agents of the job.
    pub secret: Secret,
    /// The user's directory for jobs on every host (`/tmp/tameike-UID`).
    pub base_dir: PathBuf,
    /// `address:port` at which the fabric listens; port 0 stands for any.
    pub listen: String,
    /// How it speaks with other agents.
    pub fabric: FabricChoice,
    /// Nodes that it stays connected with, unless as many as usual.
    #[serde(default)]
    pub connections: Option<u32>,
    /// Whether it tells nobody which nodes may have bytes in memory.
    #[serde(default)]
    pub no_holders: bool,
    /// Whether a mapping and calls may write to one page at the same time.
    #[serde(default)]
    pub coherent_mmap: bool,
    /// The cores of its host to which its threads are bound; `None` leaves them to the system.
    pub cores: Option<CoreSet>,
    /// The device; `None` on a node that uses its group's (BB-2).
    pub device: Option<DeviceStart>,
    /// Limits of the views on this node in bytes, in the order of [`View::ALL`]; their sum is the size of
    /// the device.
    pub capacity: [u64; 3],
    /// Bound of the agent's memory for frames, in bytes.
    pub memory: u64,
    /// The directory of the shared file system behind the cache view.
    pub shared_dir: Option<PathBuf>,
    /// What of it is packed.
    #[serde(default)]
    pub aggregate: Aggregate,
    /// What is known to be missing in the device directory of a job that is recovered, in plain words. It is
    /// told in [`AgentControl::damage`], by this agent and by later ones.
    #[serde(default)]
    pub damage: Vec<String>,
}

/// A mounted view.
#[derive(Debug)]
pub struct ViewDoor {
    /// Which view.
    pub view: View,
    /// The open `/dev/fuse` of its mount, where the kernel's `FUSE_INIT` waits; none of a node-local view that is a file
    /// system of the kernel's own, which needs nobody to serve it.
    pub fuse: Option<OwnedFd>,
    /// Where it is mounted, as programs see it.
    pub path: PathBuf,
}

/// What the command line gives to [`AgentControl::start`].
#[derive(Debug)]
pub struct StartInput {
    /// What the driver said.
    pub start: AgentStart,
    /// The views; none in [`AgentMode::Recover`], and no cache view without a shared directory.
    pub doors: Vec<ViewDoor>,
    /// Where programs that were preloaded reach the agent; none in [`AgentMode::Recover`].
    pub ring: Option<PathBuf>,
}

/// One command to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCommand {
    /// Stands in every answer to it.
    pub id: u64,
    /// What to do.
    pub request: AgentRequest,
}

/// What a driver can ask of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentRequest {
    /// Here are all agents of the job: connect, and serve the views. Answered by `Joined`.
    Join {
        /// All nodes, in the order of their numbers.
        nodes: Vec<NodeInfo>,
    },
    /// Flush every file that this node coordinates. Answered by any number of `Progress`, then `Receipt`.
    Drain {
        /// Reads everything back from the shared file system and compares.
        verify: bool,
    },
    /// Files that this node coordinates and that are not drained yet. Answered by `Receipt`.
    Undrained,
    /// Write what the journal holds of files that are gone from the shared directory below another one, and forget it. Answered by
    /// `Receipt`, of the files that were.
    SaveGone {
        /// The directory.
        dir: PathBuf,
    },
    /// Answered by `Status`.
    Status,
    /// Have the job hold these files of the shared directory, and all below these directories. Answered by any number of `Warming`,
    /// then `Warmed`.
    Warm {
        /// Which, as bytes relative to the shared directory.
        paths: Vec<Vec<u8>>,
    },
    /// Have an earlier `Warm` end soon. Answered by `Done`.
    BreakOff {
        /// Its number.
        command: u64,
    },
    /// Who has what of which files. Answered by `Files`.
    Files(FilesAsked),
    /// Measure the network between this node and another one. Answered by `Measured`.
    Measure(Order),
    /// Send a signal to a command that was started in this node's namespaces. Answered by `Done`.
    Signal {
        /// The name under which the command was entered.
        command: String,
        /// The signal's number.
        signal: i32,
    },
    /// End every program that still runs in this node's namespaces. Answered by `CommandsEnded`.
    EndCommands,
    /// Unmount, end, and remove what belongs to the node, except a journal with dirty data. Answered by
    /// `Stopped`, the last line.
    Stop {
        /// How long a flush that is under way may go on, in milliseconds.
        grace_ms: u64,
        /// Whether the drain before was incomplete, so that what names another node's dirty data must stay, too.
        keep: bool,
    },
}

/// One line from an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAnswer {
    /// The number of the command it answers; 0 for the start.
    pub id: u64,
    /// What it says.
    pub reply: AgentReply,
}

/// What an agent can answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentReply {
    /// The agent is up and waits for `Join`.
    Ready {
        /// Its process.
        node: NodeRecord,
        /// `address:port` of its fabric end point.
        address: String,
    },
    /// The agent has reached its peers and serves.
    Joined {
        /// As [`AgentControl::damage`].
        damage: Vec<String>,
    },
    /// Done.
    Done,
    /// No program runs in the node's namespaces any more.
    CommandsEnded {
        /// What programs outside of the job have written below the mounts of the views, in plain words.
        strays: Vec<String>,
    },
    /// How far the drain is.
    Progress(Progress),
    /// The drain has ended.
    Receipt(Receipt),
    /// The agent's state.
    Status(Box<NodeStatus>),
    /// Files are being loaded.
    Warming(Warmed),
    /// Files were loaded.
    Warmed(Warmed),
    /// Who has what of files.
    Files(Vec<FileLine>),
    /// The network was measured.
    Measured(Outcome),
    /// The agent is ending, and has got on with that.
    Stopping,
    /// The agent has ended.
    Stopped(Left),
    /// The command failed; the agent goes on, except after a failed start.
    Failed(Fault),
}

/// The process of an agent, as it is found again by who comes later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node's number.
    pub node: NodeId,
    /// Process number on its host.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, so that a reused number is not taken for it.
    pub pid_start: u64,
    /// Which namespaces the agent has of its own.
    pub isolation: Isolation,
    /// Mount points by view, as programs on the node see them.
    pub mounts: Vec<(View, PathBuf)>,
}

/// How the mounts of a node are kept apart from everybody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// A mount namespace (the agent runs as root).
    MountNamespace,
    /// A user and a mount namespace.
    UserNamespace,
    /// Not at all: `fusermount3` mounted them for everybody on the host to see (but only the user to enter).
    None,
}

/// An agent, as the command line drives it. Methods block, are called on threads of their own, and `status`
/// may be called while `drain` runs.
pub trait AgentControl: Send + Sync + Sized + 'static {
    /// Starts the agent: opens the device, listens. Called after namespaces and mounts are made; may start
    /// threads.
    ///
    /// # Errors
    /// Why it cannot start.
    fn start(input: StartInput) -> Result<Self>;

    /// `address:port` of the fabric end point, with the real port.
    fn address(&self) -> String;

    /// Connects to the other agents and serves the views; returns when requests of programs will be answered.
    ///
    /// # Errors
    /// Which peer was not reached, or did not know the secret.
    fn join(&self, nodes: Vec<NodeInfo>) -> Result<()>;

    /// Flushes every file that this node coordinates, tells how far it is now and then, and returns the
    /// receipt; also when files or agents fail, which the receipt then says.
    fn drain(&self, verify: bool, progress: &mut dyn FnMut(Progress)) -> Receipt;

    /// The files that it coordinates and that are not drained yet.
    fn undrained(&self) -> Receipt {
        Receipt::default()
    }

    /// Writes what the journals hold of files of its own that are gone from the shared directory below `dir`, under their paths, and forgets it.
    /// The receipt names the files of which that was done, and why not.
    fn save_gone(&self, _dir: &Path) -> Receipt {
        Receipt::default()
    }

    /// What of its journal was damaged and is missing, in plain words; empty for a whole one.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// State of the agent.
    fn status(&self) -> Result<NodeStatus>;

    /// Has the job hold files of the shared directory, and all below directories of it, before anybody reads them. Tells how far it
    /// is now and then, and ends soon when the answer to that is to break off.
    ///
    /// # Errors
    /// When the job has no shared directory. What could not be read is told with the rest.
    fn warm(
        &self,
        paths: Vec<Vec<u8>>,
        progress: &mut dyn FnMut(Warmed) -> ControlFlow<()>,
    ) -> Result<Warmed>;

    /// Tells who has what of files.
    ///
    /// # Errors
    /// When there are too many.
    fn files(&self, asked: FilesAsked) -> Result<Vec<FileLine>>;

    /// Measures the network between this node and another one.
    ///
    /// # Errors
    /// What is wrong with the order, why the other node is not reached, or that other bytes arrived than were sent.
    fn measure(&self, order: Order) -> Result<Outcome>;

    /// The driver is gone, and programs that still write to files of the cache view are about to be ended: that is written down.
    fn cut_off(&self) {}

    /// Ends the agent. A flush that is under way may go on for `grace`; what is dirty then stays in the
    /// journal. With `drained`, no node has anything dirty. Called once; other calls that still run return soon after. Where
    /// there is much to do, `stopping` is called now and then when some of it is done.
    ///
    /// # Errors
    /// The journal could not be closed; the device directory is then kept.
    fn stop(&self, grace: Duration, drained: bool, stopping: &mut dyn FnMut()) -> Result<Left>;

    /// What the device directory of an agent that is dead holds; what is dirty in it stays so.
    ///
    /// # Errors
    /// It cannot be read; the directory is then kept.
    fn inspect(device_dir: &Path) -> Result<Left>;
}

#[cfg(test)]
mod tests;
