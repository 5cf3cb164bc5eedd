//! The protocol between other commands and a job's driver: JSON lines on the driver's socket.

use crate::mirror::MirrorStatus;
use crate::settings::hostfile::HostSpec;
use crate::settings::volume::VolumeName;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use tameike_agent::control::Progress;
use tameike_agent::files::{FileLine, FileSelection};
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{CopyReport, NodeStatus, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{Errno, Fault, JobId};

/// A request to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientRequest {
    /// State of all nodes. Reply: `Status`.
    Status,
    /// Load files of the shared directory, and directories recursively. Replies: any number of `Warming`, then `Warmed`.
    /// The end of the connection aborts the request.
    Warm {
        /// Paths relative to the shared directory.
        paths: Vec<Vec<u8>>,
    },
    /// The nodes that cache files. Reply: `Files`.
    Files(FileSelection),
    /// Have a node measure the network to another one. Reply: `Measured`.
    Measure {
        /// The node that measures.
        node: u32,
        /// The quantity and the peer.
        order: Order,
    },
    /// Compare the copies of all homes, and repair them. Reply: `CopiesChecked`.
    CheckCopies,
    /// Drain now. Replies: any number of `Progress`, then `Receipt`.
    Drain {
        /// Read every file back and compare it.
        verify: bool,
    },
    /// Drain and end the job. Replies: `Progress`, `Receipt`; the connection ends when the job has been removed.
    Down {
        /// Read every file back and compare it.
        verify: bool,
    },
    /// Add nodes to the job. Replies: any number of `Resizing`, then `Resized` when all nodes have even shares of the data.
    Grow {
        /// The nodes.
        nodes: Vec<HostSpec>,
    },
    /// Move the data of nodes to the others, and end their agents. Replies as to `Grow`.
    Shrink {
        /// The nodes.
        nodes: Vec<u32>,
    },
    /// Restart the agents of nodes, one after another. Replies as to `Grow`.
    Restart {
        /// The nodes.
        nodes: Vec<u32>,
        /// The program for agents on the driver's host; by default the path of the one with which the job was started.
        program: Option<PathBuf>,
        /// Nodes of a volume that have failed get new stores.
        new_store: bool,
    },
    /// Run a command on a node; its standard input, output and error accompany the line. Reply: `Ended`. Lines with `Signal`
    /// may follow; the end of the connection terminates the command.
    Launch(Launch),
    /// Signal the command that was launched on this connection.
    Signal {
        /// The signal's number.
        signal: i32,
    },
}

/// A command to run on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The node.
    pub node: u32,
    /// The directory to run in.
    pub cwd: PathBuf,
    /// The command and its arguments.
    pub command: Vec<Text>,
    /// Variables to set.
    pub variables: Vec<(String, Text)>,
    /// Preload the library into the command.
    pub preload: bool,
    /// The whole environment, for nodes on the driver's host.
    pub environment: Vec<(Text, Text)>,
}

impl Launch {
    /// Returns a launch with the environment of this process.
    pub fn here(node: u32, cwd: PathBuf, command: Vec<OsString>, variables: Vec<(String, OsString)>) -> Self {
        Self {
            node,
            cwd,
            command: command.into_iter().map(Text::from).collect(),
            preload: false,
            variables: variables.into_iter().map(|(name, value)| (name, value.into())).collect(),
            environment: std::env::vars_os().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }
}

/// Text of the operating system: bytes, mostly UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text(Vec<u8>);

impl From<OsString> for Text {
    fn from(text: OsString) -> Self {
        Self(std::os::unix::ffi::OsStringExt::into_vec(text))
    }
}

impl From<Text> for OsString {
    fn from(text: Text) -> Self {
        std::os::unix::ffi::OsStringExt::from_vec(text.0)
    }
}

/// A reply of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverReply {
    /// State of the job.
    Status(JobStatus),
    /// Progress of loading.
    Warming(Warmed),
    /// Loading has ended.
    Warmed(Warmed),
    /// The nodes that cache files.
    Files(Vec<FileLine>),
    /// Outcome of a measurement.
    Measured(Outcome),
    /// The copies are compared.
    CopiesChecked(Vec<CopyLine>),
    /// Progress of the drain.
    Progress(Progress),
    /// Progress of a change of the nodes.
    Resizing {
        /// Copies of homes that are still to be made or to move.
        copies: u64,
    },
    /// The change of the nodes is made.
    Resized,
    /// The drain has ended.
    Receipt(Receipt),
    /// The mirror of a job that ends has ended.
    Mirrored(Mirrored),
    /// The launched command exited.
    Ended {
        /// Its exit code.
        code: u8,
    },
    /// The request failed.
    Failed(Fault),
}

impl DriverReply {
    /// Returns the fault for a caller that expects another reply.
    pub fn out_of_turn(&self) -> Fault {
        match self {
            Self::Failed(fault) => fault.clone(),
            Self::Status(_)
            | Self::Warming(_)
            | Self::Warmed(_)
            | Self::Files(_)
            | Self::Measured(_)
            | Self::CopiesChecked(_)
            | Self::Progress(_)
            | Self::Resizing { .. }
            | Self::Resized
            | Self::Receipt(_)
            | Self::Mirrored(_)
            | Self::Ended { .. } => Fault::new(Errno::EPROTO, "the driver sent an unexpected reply"),
        }
    }
}

/// The outcome of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirrored {
    /// The mirror has everything.
    pub is_complete: bool,
    /// Messages for the user.
    pub messages: Vec<String>,
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub job: JobId,
    /// The volume that it serves.
    #[serde(default)]
    pub volume: Option<VolumeStatus>,
    /// Start time in seconds since 1970-01-01 UTC.
    pub started: i64,
    /// The directory behind the cache view.
    pub shared_dir: Option<PathBuf>,
    /// Its nodes.
    pub nodes: Vec<NodeLine>,
    /// The replicas of its data, if it has more than one.
    pub replicas: Option<ReplicaStatus>,
    /// The mirror of the shared directory, if the job has one.
    #[serde(default)]
    pub mirror: Option<Box<MirrorStatus>>,
}

/// State of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: VolumeName,
    /// Whether the copies of all data are being compared, because the agents were killed before the start.
    pub compares_copies: bool,
}

/// State of the replicas of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Number of replicas of each home at the start of the job.
    pub wanted: u32,
    /// Nodes that have failed, do not answer, or cannot be reached, by number.
    pub excluded: Vec<u32>,
    /// Number of homes.
    pub homes: u64,
    /// Number of homes that only their primary has.
    pub homes_with_one_copy: u64,
    /// Number of homes that only excluded nodes have.
    pub homes_without_node: u64,
    /// Number of homes that are being copied to another node.
    pub homes_being_copied: u64,
}

/// What a node has found when it compared the copies of its homes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyLine {
    /// Its number.
    pub node: u32,
    /// The result, if it replied.
    pub report: Option<CopyReport>,
    /// The reason if it did not.
    pub fault: Option<String>,
}

/// State of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLine {
    /// Its number.
    pub node: u32,
    /// Its host.
    pub host: String,
    /// Its agent's state, if it replied.
    pub status: Option<NodeStatus>,
    /// The reason if it did not.
    pub fault: Option<String>,
}
