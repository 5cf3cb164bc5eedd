//! What other commands ask of a job's driver, as JSON lines on its socket.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use tameike_agent::control::Progress;
use tameike_agent::files::{FileLine, FilesAsked};
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::{NodeStatus, Warmed};
use tameike_core::wire::measure::{Order, Outcome};
use tameike_core::{Errno, Fault, JobId};

/// A request to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientRequest {
    /// State of all nodes. Answered by `Status`.
    Status,
    /// Have the job hold files of the shared directory, and all below directories. Answered by any number of `Warming`, then
    /// `Warmed`; it is broken off when the connection ends before.
    Warm {
        /// Which, as bytes relative to the shared directory.
        paths: Vec<Vec<u8>>,
    },
    /// Who has what of which files. Answered by `Files`.
    Files(FilesAsked),
    /// Have a node measure the network between it and another one. Answered by `Measured`.
    Measure {
        /// Which node.
        node: u32,
        /// What it measures, and with which other.
        order: Order,
    },
    /// Drain now. Answered by any number of `Progress`, then `Receipt`.
    Drain {
        /// Whether to read everything back.
        verify: bool,
    },
    /// Drain and end the job. Answered by `Progress`, `Receipt`, and the end of the connection when all is
    /// taken down.
    Down {
        /// Whether to read everything back.
        verify: bool,
    },
    /// Run a command on a node; its standard input, output and error come beside the line. Answered by
    /// `Ended`. Lines with `Signal` may follow; the end of the connection ends the command.
    Launch(Launch),
    /// Signal the command that was launched on this connection.
    Signal {
        /// The signal's number.
        signal: i32,
    },
}

/// A command to be run on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Which node.
    pub node: u32,
    /// The directory to run in.
    pub cwd: PathBuf,
    /// The command and its arguments.
    pub command: Vec<Text>,
    /// Variables to set.
    pub variables: Vec<(String, Text)>,
    /// Whether the command is preloaded.
    pub preload: bool,
    /// The whole environment, for nodes on the driver's host.
    pub environment: Vec<(Text, Text)>,
}

impl Launch {
    /// A command with the environment of this process.
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

/// A driver's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverReply {
    /// State of the job.
    Status(JobStatus),
    /// Files are being loaded.
    Warming(Warmed),
    /// Files were loaded.
    Warmed(Warmed),
    /// Who has what of files.
    Files(Vec<FileLine>),
    /// The network was measured.
    Measured(Outcome),
    /// How far the drain is.
    Progress(Progress),
    /// The drain has ended.
    Receipt(Receipt),
    /// The launched command ended with this exit code.
    Ended {
        /// The code.
        code: u8,
    },
    /// The request failed.
    Failed(Fault),
}

impl DriverReply {
    /// What to say of it to who expects another one.
    pub fn out_of_turn(&self) -> Fault {
        match self {
            Self::Failed(fault) => fault.clone(),
            Self::Status(_)
            | Self::Warming(_)
            | Self::Warmed(_)
            | Self::Files(_)
            | Self::Measured(_)
            | Self::Progress(_)
            | Self::Receipt(_)
            | Self::Ended { .. } => Fault::new(Errno::EPROTO, "the driver answered out of turn"),
        }
    }
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub job: JobId,
    /// When it was started, in seconds since 1970-01-01 UTC.
    pub started: i64,
    /// The directory behind the cache view.
    pub shared_dir: Option<PathBuf>,
    /// Its nodes.
    pub nodes: Vec<NodeLine>,
}

/// State of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLine {
    /// Its number.
    pub node: u32,
    /// Its host.
    pub host: String,
    /// Its agent's state, when it answered.
    pub status: Option<NodeStatus>,
    /// Why not.
    pub fault: Option<String>,
}
