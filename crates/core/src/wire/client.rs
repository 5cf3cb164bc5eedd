//! Messages to the views of a node.

use crate::errno::Fault;
use crate::ids::{Generation, InodeId, UnitId};
use crate::wire::lock::LockOwner;
use serde::{Deserialize, Serialize};

/// A request to the views of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Another node has changed inodes or their names: the leases of them end.
    Revoke {
        /// Which inodes.
        inodes: Vec<InodeId>,
    },
    /// A directory of the shared file system has another path since a rename: views that hold it follow.
    Moved {
        /// The directory.
        dir: InodeId,
        /// Old path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// New path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
    },
    /// For locks of which files an owner of this node waits.
    LockWaits {
        /// Who.
        owner: LockOwner,
    },
    /// A file of the cache view is about to lose its last name: who has it open goes on with the shared file.
    Removing {
        /// Which file.
        inode: InodeId,
    },
    /// It has kept its name after all.
    Kept {
        /// Which file.
        inode: InodeId,
    },
    /// Bytes of a unit, if the node has them in memory as they are in this version of the file.
    ReadHeld {
        /// Which unit.
        unit: UnitId,
        /// First byte in the unit.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Which version of the file.
        generation: Generation,
    },
}

impl ClientRequest {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            // Taken note of twice, the first two say nothing more.
            Self::Revoke { .. } | Self::Moved { .. } | Self::LockWaits { .. } | Self::ReadHeld { .. } => true,
            Self::Removing { .. } | Self::Kept { .. } => false,
        }
    }
}

/// The answer to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// Done.
    Done,
    /// The files.
    Waits(Vec<InodeId>),
    /// Who has the file open cannot go on with the shared file: its content cannot be brought there.
    Held(Fault),
    /// The bytes are the payload.
    Read,
    /// The node does not have them.
    NotHeld,
    /// The node may have them, and has enough to do with sending them to others.
    Busy,
}
