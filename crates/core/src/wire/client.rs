//! Messages to the views of a node.

use crate::ids::InodeId;
use serde::{Deserialize, Serialize};

/// A request to the views of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Another node has changed inodes or their names: the leases of them end.
    Revoke {
        /// Which inodes.
        inodes: Vec<InodeId>,
    },
}

/// The answer to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// Done.
    Done,
}
