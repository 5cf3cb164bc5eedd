//! Messages to the views of a node.

use crate::errno::Fault;
use crate::ids::{Generation, InodeId, UnitId};
use crate::wire::lock::LockOwner;
use crate::wire::region::{Arrival, Release};
use crate::wire::window::{Access, WindowReply, WindowRequest};
use serde::{Deserialize, Serialize};

/// A request to the views of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Another node changed inodes or their names: revokes the leases of them.
    Revoke {
        /// The inodes.
        inodes: Vec<InodeId>,
    },
    /// A directory of the shared file system was renamed: views update their paths.
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
    /// Requests the files whose locks an owner of this node waits for.
    LockWaits {
        /// The owner.
        owner: LockOwner,
    },
    /// A file of the cache view is about to lose its last name: programs that have it open continue with the shared
    /// file.
    Removing {
        /// The file.
        inode: InodeId,
    },
    /// The file has kept its name.
    Kept {
        /// The file.
        inode: InodeId,
    },
    /// Reads bytes of a unit, if the node has them in memory in this generation.
    ReadHeld {
        /// The unit.
        unit: UnitId,
        /// Offset in the unit.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Generation of the file.
        generation: Generation,
    },
    /// Processes of a child in the barrier tree have arrived. The reply is the release, or `Redirected`.
    Arrive(Arrival),
    /// A process of the region has ended or detached, or a node with such processes has failed: barriers fail.
    RegionBroken {
        /// The region.
        region: InodeId,
        /// The coordinator's number of the first barrier that fails. Earlier ones are complete, even if their releases arrive later.
        barrier: u64,
        /// Whether the process or the node has ended without detaching.
        failed: bool,
    },
    /// Accesses the memory of a window. The reply is that of the access, or `Failed`.
    Window(WindowRequest),
}

impl ClientRequest {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            // The effect of a repeated `Revoke` or `Moved` is the same.
            Self::Revoke { .. } | Self::Moved { .. } | Self::LockWaits { .. } | Self::ReadHeld { .. } => true,
            Self::Removing { .. } | Self::Kept { .. } | Self::Arrive(_) | Self::RegionBroken { .. } => false,
            Self::Window(request) => request.access.is_read_only(),
        }
    }

    /// As [`super::Request::expects_payload`].
    pub(super) fn expects_payload(&self) -> bool {
        let is_get = |request: &WindowRequest| matches!(request.access, Access::Get { .. });
        match self {
            Self::ReadHeld { .. } => true,
            Self::Window(request) => is_get(request),
            _ => false,
        }
    }
}

/// The reply to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// The request was carried out.
    Done,
    /// The files.
    Waits(Vec<InodeId>),
    /// Programs that have the file open cannot continue with the shared file, because its content cannot be written
    /// there.
    Held(Fault),
    /// The bytes are the payload.
    Read,
    /// The node does not have the bytes.
    NotHeld,
    /// The node may have the bytes, but is busy with other peer reads.
    Busy,
    /// The end of a barrier.
    Released(Release),
    /// The node has another version of the members: the sender must send its arrival to the coordinator.
    Redirected,
    /// The barrier or the access failed.
    Failed(Fault),
    /// Reply to [`ClientRequest::Window`].
    Window(WindowReply),
}
