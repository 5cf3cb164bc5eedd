//! Request and reply of `tameike cache stat`: the cached data of single files on each node.

use serde::{Deserialize, Serialize};
use tameike_core::wire::admin::FileHeld;
use tameike_core::wire::holders::Holder;
use tameike_core::{InodeId, NodeId};

/// Largest number of files in a request.
pub const FILES_MAX: u32 = 256;

/// Selects the files of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSelection {
    /// The files, at most this many, whose cache holders were queried most often.
    Most(u32),
    /// A list of files.
    These(Vec<FileSelector>),
}

/// Identifies a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSelector {
    /// By path, relative to the shared directory.
    Shared(Vec<u8>),
    /// By inode number.
    Inode(u64),
}

/// Cached data of one file on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLine {
    /// Path, or inode number if the path is not known.
    pub file: String,
    /// Inode number.
    pub inode: u64,
    /// Generation, if the file's home knows of an open.
    pub generation: Option<u64>,
    /// Cache holders that the home knows, with their queries and hits.
    pub holders: Vec<Holder>,
    /// Nodes that have data of the file.
    pub nodes: Vec<NodeBytes>,
    /// The error, if the file was not found.
    pub fault: Option<String>,
}

/// Data of a file on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// Number of the node.
    pub node: NodeId,
    /// Bytes in memory, for programs of the node and for peer reads.
    pub memory_bytes: u64,
    /// Bytes on the device, for units whose home the node is.
    pub device_bytes: u64,
    /// True if `device_bytes` counts only a part of the units on the device.
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
