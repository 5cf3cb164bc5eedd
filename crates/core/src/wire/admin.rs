//! Messages to an agent itself: capacity, status, readiness.

use crate::cores::CoreSet;
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
    /// Taken, in blocks of the device.
    pub used: u64,
    /// Of it, bytes that are not yet on the shared file system (cache view).
    pub dirty: u64,
    /// Number of inodes.
    pub inodes: u64,
}

/// One number of an agent, named and explained once in the code that counts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name in snake case with its unit last.
    pub name: String,
    /// The value.
    pub value: u64,
}

/// Names of the counters of where the bytes of reads came from. All are sums since the agent started.
pub mod counters {
    /// Bytes that programs were given from memory of their own node; not those that they read there without asking its agent.
    pub const READ_MEMORY: &str = "read_own_memory_bytes";
    /// Bytes that other nodes brought, from memory.
    pub const READ_HOLDERS: &str = "read_other_memory_bytes";
    /// Bytes that the homes of units brought, wherever they had them from.
    pub const READ_HOMES: &str = "read_home_bytes";
    /// How often other nodes have asked for what the node may have in memory.
    pub const HELD_REQUESTED: &str = "held_requested";
    /// How often it had that, and sent it.
    pub const HELD_DELIVERED: &str = "held_delivered";
    /// How often bytes in its memory were found to have changed by themselves.
    pub const DAMAGED: &str = "memory_damaged";
    /// The same in pages of 4 KiB, as far as they were asked for.
    pub const HELD_REQUESTED_PAGES: &str = "held_requested_pages";
    /// Of them, those that it sent.
    pub const HELD_DELIVERED_PAGES: &str = "held_delivered_pages";
    /// Bytes that the node has sent to others who read, as the home of units or from memory, or told where they lie.
    pub const SENT: &str = "sent_bytes";
    /// Messages that libfabric has carried to other nodes.
    pub const LINK_MESSAGES: &str = "libfabric_messages";
    /// Bytes that were read through libfabric from memory of other nodes.
    pub const LINK_READ: &str = "libfabric_read_bytes";
    /// Bytes that the node, as the home of units, has read of files of the shared file system.
    pub const LOADED_SHARED: &str = "loaded_shared_bytes";
    /// Bytes that it has got from memory of other nodes instead.
    pub const LOADED_HOLDERS: &str = "loaded_other_memory_bytes";
}

impl Counter {
    /// One with this name.
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), value }
    }
}

/// A directory of the shared file system in which many files were made fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storm {
    /// Its path, relative to the shared directory.
    pub dir: String,
    /// Files that were made in it as themselves.
    pub plain: u64,
    /// Files that were packed.
    pub packed: u64,
    /// How long the shared file system takes to make a file: the mean, in nanoseconds.
    pub create_ns: u64,
}

impl Storm {
    /// Adds what another node has made in the same directory.
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
    /// Which node.
    pub node: NodeId,
    /// Process number on its host.
    pub pid: u32,
    /// Space by view, in the order of [`View::ALL`].
    pub space: [Space; 3],
    /// Resident memory of the agent, in bytes.
    pub resident_bytes: u64,
    /// Cores of its host on which its threads may run, where that is known.
    pub cores: Option<CoreSet>,
    /// Frames in use and in all.
    pub frames: (u32, u32),
    /// Nodes that cannot be reached now.
    pub unreachable: Vec<NodeId>,
    /// Counters.
    pub counters: Vec<Counter>,
    /// Directories in which programs of this node have made many files fast.
    pub storms: Vec<Storm>,
}

/// What of the shared directory was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    /// Regular files that the job holds now.
    pub files: u64,
    /// Bytes of files that it holds now, and of holes.
    pub bytes: u64,
    /// Files of which a part had no room.
    pub left_out_files: u64,
    /// What of them had none, in bytes.
    pub left_out_bytes: u64,
    /// Whether it was broken off.
    pub is_broken_off: bool,
    /// Files and directories that could not be read.
    pub failed: u64,
    /// Why, of the first of them.
    pub faults: Vec<String>,
}

/// Most files of one [`AdminRequest::Files`].
pub const FILES_ASKED_MAX: usize = 12;

// Each with the longest path and all holders.
const _: () = assert!(FILES_ASKED_MAX * (TREE_PATH_SIZE_MAX + HOLDERS_KEPT_MAX * 15 + 64) < MESSAGE_SIZE_MAX);

/// Who may hold a file, as its home has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHolders {
    /// Version of the file.
    pub generation: Generation,
    /// Nodes that may have it in memory.
    pub holders: Vec<Holder>,
}

/// What one node has of a file, and knows of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeld {
    /// Bytes in memory for its programs.
    pub memory_bytes: u64,
    /// Bytes on its device.
    pub device_bytes: u64,
    /// Whether only a part of its device was looked through.
    pub is_partial: bool,
    /// At the file's home.
    pub table: Option<FileHolders>,
    /// Path below the shared directory, of a cached file, as far as this node knows it; empty else.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Space of a view on this node.
    Space {
        /// Which view.
        view: View,
    },
    /// State of this agent.
    Status,
    /// The agent of a node has ended, as the sender has found.
    Dead {
        /// Which.
        node: NodeId,
    },
    /// A part of a measurement of the network by another agent.
    Exchange(Exchange),
    /// What the node has of these files, at most [`FILES_ASKED_MAX`].
    Files(Vec<InodeId>),
    /// Of the files in this node's cache table, those whose holders were asked most often.
    MostAsked {
        /// How many.
        count: u32,
    },
}

impl AdminRequest {
    /// As of a request.
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Space { .. }
            | Self::Status
            | Self::Dead { .. }
            | Self::Files(_)
            | Self::MostAsked { .. } => true,
            Self::Exchange(exchange) => exchange.is_read_only(),
        }
    }
}

/// The answer to an [`AdminRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminReply {
    /// Space.
    Space(Space),
    /// State.
    Status(Box<NodeStatus>),
    /// It was heard.
    Done,
    /// To a part of a measurement.
    Exchange(ExchangeReply),
    /// In the order in which they were asked for.
    Files(Vec<FileHeld>),
    /// Files, each with how often its holders were asked, the most often asked first.
    MostAsked(Vec<(InodeId, u64)>),
}
