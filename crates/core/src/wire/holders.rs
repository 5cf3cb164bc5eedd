//! Entries of the cache table: the nodes that may have bytes of a file in memory.
//!
//! The home of the file's inode has the table. It needs no messages: replies to opens carry the holders, and later
//! messages to the home carry the results of requests to them.

use crate::ids::{InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// A node that may have bytes of a file in memory, with its hit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// Number of requests to it.
    pub requested: u32,
    /// Number of requests that it could serve.
    pub delivered: u32,
}

impl Holder {
    /// Number of misses: callers try the holder with the fewest first.
    pub fn missed(&self) -> u32 {
        self.requested.saturating_sub(self.delivered)
    }
}

/// Requests of a node to a holder since its last report to the file's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderOutcome {
    /// The file.
    pub inode: InodeId,
    /// The holder, with the counts of the reporting node.
    pub holder: Holder,
}
