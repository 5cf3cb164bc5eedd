//! What stands behind a file's units: the two kinds of file whose data is striped, and the version of one that its home knows.

use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::wire::cache::CacheState;
use tameike_core::wire::holders::Holder;
use tameike_core::wire::meta::Node;
use tameike_core::wire::unit::Backing;
use tameike_core::{Attr, Generation, NodeId};

/// What stands behind a file.
#[derive(Clone)]
pub enum Home {
    /// Its inode record (job-shared and node-local views).
    Inode,
    /// The file of the shared file system at this path, which follows renames, and its coordinator.
    Shared(Arc<Mutex<Vec<u8>>>),
}

/// The content of a file as its home knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// Size in bytes.
    pub size: u64,
    /// Version of the content.
    pub generation: Generation,
    /// Whether the content lies in the inode record.
    pub inline: bool,
    /// The inline content, if it was brought along.
    pub content: Option<Vec<u8>>,
    /// Other nodes that may have bytes of it in memory, if it was opened.
    pub holders: Vec<Holder>,
}

impl FileVersion {
    /// The version that the home reports with an inode of the job-shared view.
    pub fn of_node(node: &Node) -> Self {
        let content = node.content.as_ref().map(|content| content.to_vec());
        let holders = node.holders.clone();
        let Attr { size, generation, inline, .. } = node.attr;
        Self { size, generation, inline, content, holders }
    }

    pub(super) fn of_cache(state: CacheState, size: u64) -> Self {
        let size = state.newer.map_or(size, |(newer, _)| newer);
        Self { size, generation: state.generation, ..Self::default() }
    }
}

impl Home {
    /// Where the bytes of a file come from of which its units' homes have none; `holders` may have them in memory.
    pub(super) fn backing(&self, holders: impl FnOnce() -> Vec<NodeId>) -> Backing {
        match self {
            Self::Inode => Backing::Zeros,
            Self::Shared(path) => Backing::Shared { path: path.lock().clone(), holders: holders() },
        }
    }

    /// Whether what a close acknowledges must survive the failure of an agent.
    pub(super) fn is_journaled(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}
