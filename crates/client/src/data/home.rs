//! Backing of a file's units: one of the two kinds of file whose data is striped, and the version that its home knows.

use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::wire::cache::CacheState;
use tameike_core::wire::holders::Holder;
use tameike_core::wire::meta::Node;
use tameike_core::wire::unit::Backing;
use tameike_core::{Attr, Generation, NodeId};

/// Backing of a file.
#[derive(Clone)]
pub enum Home {
    /// Its inode record (job-shared and node-local views).
    Inode,
    /// The file at this path of the shared file system, and its coordinator. The path follows renames.
    Shared(Arc<Mutex<Vec<u8>>>),
}

/// A file's content as its home knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// Size in bytes.
    pub size: u64,
    /// Version of the content.
    pub generation: Generation,
    /// Whether the content is in the inode record.
    pub inline: bool,
    /// The inline content, if the reply carried it.
    pub content: Option<Vec<u8>>,
    /// Peer cache holders of the file, if the request was an open.
    pub holders: Vec<Holder>,
}

impl FileVersion {
    /// Returns the version that the home reports with an inode of the job-shared view.
    pub fn of_node(node: &Node) -> Self {
        let content = node.content.as_ref().map(|content| content.to_vec());
        let holders = node.holders.clone();
        let Attr { size, generation, inline, .. } = node.attr;
        Self { size, generation, inline, content, holders }
    }

    /// Converts a coordinator's state; `size` is that of the shared file.
    pub(crate) fn of_cache(state: CacheState, size: u64) -> Self {
        let size = state.newer.map_or(size, |(newer, _)| newer);
        Self { size, generation: state.generation, ..Self::default() }
    }
}

impl Home {
    /// Returns the source of bytes that the units' homes lack; `holders` may have them in memory.
    pub(super) fn backing(&self, holders: impl FnOnce() -> Vec<NodeId>) -> Backing {
        match self {
            Self::Inode => Backing::Zeros,
            Self::Shared(path) => Backing::Shared { path: path.lock().clone(), holders: holders() },
        }
    }

    /// Returns true if data that a close acknowledges must survive the failure of an agent.
    pub(super) fn is_journaled(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}
