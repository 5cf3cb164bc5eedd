//! The cache table: which nodes may have bytes of a file in memory.
//!
//! It is kept at the home of the file's inode, and costs no message of its own: it comes with the answer to an open, and what
//! became of requests goes back with later messages to that home.

use crate::ids::{InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// A node that may have bytes of a file in memory, and how often it had those that it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which node.
    pub node: NodeId,
    /// How often it was asked.
    pub requested: u32,
    /// How often it had what it was asked for.
    pub delivered: u32,
}

impl Holder {
    /// Requests in vain: who has the fewest is asked first.
    pub fn missed(&self) -> u32 {
        self.requested.saturating_sub(self.delivered)
    }
}

/// What a node has asked a holder of a file for since it last told the file's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The file.
    pub inode: InodeId,
    /// The holder, with the counts of this node alone.
    pub holder: Holder,
}
