//! Messages to an agent: capacity, status, measurements.

use crate::cores::CoreSet;
use crate::homes::HomeMap;
use crate::ids::{Generation, InodeId, NodeId, View};
use crate::limits::{HOLDERS_KEPT_MAX, MESSAGE_SIZE_MAX, TREE_PATH_SIZE_MAX};
use crate::wire::holders::Holder;
use crate::wire::measure::{Exchange, ExchangeReply};
use serde::{Deserialize, Serialize};

/// Space of one view on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// The view's limit on this node.
    pub capacity: u64,
    /// Use, in blocks of the device.
    pub used: u64,
    /// Bytes of it that the shared file system lacks (cache view).
    pub dirty: u64,
    /// Number of inodes.
    pub inodes: u64,
}

/// A counter of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name in snake case, with its unit last.
    pub name: String,
    /// The value.
    pub value: u64,
}

/// Names of counters for the sources of read bytes. All are sums since the start of the agent.
pub mod counters {
    /// Bytes that programs got from memory of their node through its agent.
    pub const READ_MEMORY: &str = "read_own_memory_bytes";
    /// Bytes received from memory of other nodes.
    pub const READ_PEER_MEMORY: &str = "read_peer_memory_bytes";
    /// Bytes received from the homes of units, whatever their source.
    pub const READ_HOMES: &str = "read_home_bytes";
    /// Number of peer reads that other nodes requested.
    pub const PEER_READS_REQUESTED: &str = "peer_reads_requested";
    /// Number of peer reads that the node served.
    pub const PEER_READS_SERVED: &str = "peer_reads_served";
    /// Number of checksum mismatches in memory.
    pub const DAMAGED: &str = "memory_damaged";
    /// Requested peer reads in pages of 4 KiB.
    pub const PEER_READ_REQUESTED_PAGES: &str = "peer_read_requested_pages";
    /// Served peer reads in pages of 4 KiB.
    pub const PEER_READ_SERVED_PAGES: &str = "peer_read_served_pages";
    /// Bytes that the node sent to readers on other nodes, as home or from memory, or of which it sent the extent
    /// location.
    pub const SENT: &str = "sent_bytes";
    /// Units that the node has copied to other nodes, for homes that lacked a replica.
    pub const COPIED_UNITS: &str = "copied_units";
    /// Messages to other nodes through libfabric.
    pub const LINK_MESSAGES: &str = "libfabric_messages";
    /// Bytes read from memory of other nodes through libfabric.
    pub const LINK_READ: &str = "libfabric_read_bytes";
    /// Bytes that the node, as home, read from the shared file system.
    pub const LOADED_SHARED: &str = "loaded_shared_bytes";
    /// Bytes that the node, as home, got from memory of other nodes instead.
    pub const LOADED_PEER_MEMORY: &str = "loaded_peer_memory_bytes";
}

impl Counter {
    /// A counter with this name.
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), value }
    }
}

/// A directory of the shared file system in which many files were created within seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storm {
    /// Its path, relative to the shared directory.
    pub dir: String,
    /// Number of files created as plain files.
    pub plain: u64,
    /// Number of packed files.
    pub packed: u64,
    /// Mean time of a file creation on the shared file system, in nanoseconds.
    pub create_ns: u64,
}

impl Storm {
    /// Adds the numbers of another node for the same directory.
    pub fn add(&mut self, other: &Self) {
        let spent = u128::from(self.create_ns) * u128::from(self.plain)
            + u128::from(other.create_ns) * u128::from(other.plain);
        let plain = self.plain + other.plain;
        let mean = spent.checked_div(u128::from(plain)).and_then(|mean| u64::try_from(mean).ok());
        self.create_ns = mean.unwrap_or(self.create_ns.max(other.create_ns));
        (self.plain, self.packed) = (plain, self.packed + other.packed);
    }
}

/// State of one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Process id on its host.
    pub pid: u32,
    /// Space by view, in the order of [`View::ALL`].
    pub space: [Space; 3],
    /// Resident memory of the agent, in bytes.
    pub resident_bytes: u64,
    /// Cores of its host on which its threads may run, if known.
    pub cores: Option<CoreSet>,
    /// Number of frames in use, and in total.
    pub frames: (u32, u32),
    /// Nodes that cannot be reached now.
    pub unreachable: Vec<NodeId>,
    /// Counters of the agent.
    pub counters: Vec<Counter>,
    /// Directories in which programs of this node created many files within seconds.
    pub storms: Vec<Storm>,
}

/// Result of `warm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    /// Number of regular files that the job now has.
    pub files: u64,
    /// Bytes of files that it now has, with holes.
    pub bytes: u64,
    /// Number of files of which a part did not fit.
    pub left_out_files: u64,
    /// Bytes of them that did not fit.
    pub left_out_bytes: u64,
    /// Whether it was interrupted.
    pub is_cancelled: bool,
    /// Number of files and directories that could not be read.
    pub failed: u64,
    /// Errors of the first of them.
    pub faults: Vec<String>,
}

/// Largest number of findings that a [`CopyReport`] describes.
pub const FINDINGS_MAX: usize = 50;

/// Result of a comparison of the copies of the homes that a node serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// Number of homes that were compared.
    pub homes: u64,
    /// Number of these that no other node has.
    pub homes_with_one_copy: u64,
    /// Number of units that were compared.
    pub units: u64,
    /// Number of copies of units and of the records of homes that were damaged or differed.
    pub differences: u64,
    /// Number of these that are repaired.
    pub repaired: u64,
    /// Number of units and homes that could not be compared.
    pub failed: u64,
    /// The first differences and failures, in plain words.
    pub findings: Vec<String>,
}

impl CopyReport {
    /// Number of differences and failures that are left.
    pub fn left(&self) -> u64 {
        self.differences.saturating_sub(self.repaired) + self.failed
    }

    /// Describes a difference or a failure, unless there are many already.
    pub fn describe(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

/// Largest number of files of one [`AdminRequest::Files`].
pub const FILES_ASKED_MAX: usize = 12;

// Each with the longest path and the most holders.
const _: () = assert!(FILES_ASKED_MAX * (TREE_PATH_SIZE_MAX + HOLDERS_KEPT_MAX * 15 + 64) < MESSAGE_SIZE_MAX);

/// Cache holders of a file, as its home knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHolders {
    /// Generation of the file.
    pub generation: Generation,
    /// Nodes that may have it in memory.
    pub holders: Vec<Holder>,
}

/// State of a file on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeld {
    /// Bytes in memory for its programs.
    pub memory_bytes: u64,
    /// Bytes on its device.
    pub device_bytes: u64,
    /// Whether the search covered only a part of the device.
    pub is_partial: bool,
    /// The holders, if the node is the file's home.
    pub table: Option<FileHolders>,
    /// Path of a cached file below the shared directory, if the node knows it; else empty.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Space of a view on this node.
    Space {
        /// The view.
        view: View,
    },
    /// State of this agent.
    Status,
    /// The sender found that the agent of a node has failed.
    Failed {
        /// The node.
        node: NodeId,
    },
    /// A part of a network measurement by another agent.
    Exchange(Exchange),
    /// State of these files on the node, at most [`FILES_ASKED_MAX`].
    Files(Vec<InodeId>),
    /// The files in this node's cache table whose holders got the most requests.
    MostRequested {
        /// Number of files.
        count: u32,
    },
    /// The home map of the sender, which is newer than that of this agent.
    Map(HomeMap),
}

impl AdminRequest {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Space { .. }
            | Self::Status
            | Self::Failed { .. }
            | Self::Files(_)
            | Self::MostRequested { .. }
            | Self::Map(_) => true,
            Self::Exchange(exchange) => exchange.is_read_only(),
        }
    }
}

/// The reply to an [`AdminRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminReply {
    /// Space of a view on the node.
    Space(Space),
    /// State of the agent.
    Status(Box<NodeStatus>),
    /// The request was carried out.
    Done,
    /// Reply to a part of a measurement.
    Exchange(ExchangeReply),
    /// In the order of the request.
    Files(Vec<FileHeld>),
    /// Files with the number of requests to their holders, in descending order.
    MostRequested(Vec<(InodeId, u64)>),
}
