//! What the nodes of a job hold of single files: the request and reply of `tameike cache stat`.

use serde::{Deserialize, Serialize};
use tameike_core::wire::admin::FileHeld;
use tameike_core::wire::holders::Holder;
use tameike_core::{InodeId, NodeId};

/// Files in one request, at most.
pub const FILES_MAX: u32 = 256;

/// Of which files a node is to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesAsked {
    /// Those whose holders were asked most often, at most so many.
    Most(u32),
    /// These.
    These(Vec<FileAsked>),
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileAsked {
    /// At this path, relative to the shared directory.
    Shared(Vec<u8>),
    /// With this inode number.
    Inode(u64),
}

/// What the nodes of a job have of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLine {
    /// Its path, or its inode number where that is not known.
    pub file: String,
    /// Its inode number.
    pub inode: u64,
    /// Version of its content, if its home knows of an open.
    pub generation: Option<u64>,
    /// Nodes that may have it in memory, as its home knows, with how often they were asked and had it.
    pub holders: Vec<Holder>,
    /// Nodes that have bytes of it.
    pub nodes: Vec<NodeBytes>,
    /// Why nothing is known of it.
    pub fault: Option<String>,
}

/// What one node has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// The node.
    pub node: NodeId,
    /// Bytes in memory, for its own programs and for others.
    pub memory_bytes: u64,
    /// Bytes on its device, as the home of parts of the file.
    pub device_bytes: u64,
    /// Whether it may have more on its device, of which only a part was looked through.
    pub is_partial: bool,
}

impl FileLine {
    pub(crate) fn of(inode: InodeId) -> Self {
        let (holders, nodes) = Default::default();
        let file = format!("inode {}", inode.0);
        Self { file, inode: inode.0, generation: None, holders, nodes, fault: None }
    }

    pub(crate) fn add(&mut self, node: NodeId, held: FileHeld) {
        let FileHeld { memory_bytes, device_bytes, is_partial, table, path } = held;
        if memory_bytes + device_bytes > 0 {
            self.nodes.push(NodeBytes { node, memory_bytes, device_bytes, is_partial });
        }
        if let Some(table) = table {
            (self.generation, self.holders) = (Some(table.generation.0), table.holders);
        }
        if !path.is_empty() {
            self.file = String::from_utf8_lossy(&path).escape_debug().to_string();
        }
    }
}
