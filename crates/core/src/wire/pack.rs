//! Messages to the packer, the only agent of a job that appends to the container of its shared directory.
//!
//! Paths are relative to the shared directory. The number of an open file is unique in the container.

use crate::attr::{AttrChange, Timestamp};
use crate::wire::meta::RenameMode;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest number of content bytes in a message.
pub const PACKED_BYTES_MAX: usize = 128 << 10;
/// Largest number of names in a message.
pub const PACKED_NAMES_MAX: usize = 512;

/// Attributes of a packed file, which is always a regular file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedStat {
    /// Its number.
    pub number: u64,
    /// Permission bits.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of links: 1, or 0 after removal.
    pub nlink: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Whether its content is external. Then the external file has size and times, and those here are older.
    pub is_external: bool,
}

/// The file whose attributes change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// The file at a path.
    At(#[serde(with = "serde_bytes")] Vec<u8>),
    /// An open file.
    Open(u64),
}

/// A request to the packer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackRequest {
    /// Attributes of the file at a path.
    Stat {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Names of a directory after a given one.
    List {
        /// The directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// The given name; empty for the first.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
    },
    /// Creates and opens a regular file, which must not exist.
    Create {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// User ID of the owner.
        uid: u32,
        /// Group ID.
        gid: u32,
        /// Time of the packer's clock from [`PackReply::LookupFirst`], since which the sender found no such name in the shared
        /// directory; without it, the sender did so a moment before.
        looked: Option<Duration>,
    },
    /// Opens a file.
    Open {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Ends an open.
    Close {
        /// The file.
        file: u64,
    },
    /// Attributes of an open file.
    StatOpen {
        /// The file.
        file: u64,
    },
    /// Reads bytes of an open file.
    Read {
        /// The file.
        file: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at most [`PACKED_BYTES_MAX`].
        length: u32,
    },
    /// Writes to an open file.
    Write {
        /// The file.
        file: u64,
        /// Offset; `None` appends.
        offset: Option<u64>,
        /// The bytes, at most [`PACKED_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Sets the size of an open file.
    Truncate {
        /// The file.
        file: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Changes attributes.
    Change {
        /// The file whose attributes change.
        of: Changed,
        /// The change.
        change: AttrChange,
    },
    /// Makes the container durable, and an open file with it.
    Sync {
        /// The file.
        file: Option<u64>,
    },
    /// Makes the next reads come from the file system, not from the cache of the packer's host.
    Forget,
    /// Removes a file.
    Unlink {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Renames a file.
    Rename {
        /// The old path.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// The new path.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
        /// Treatment of an existing file with the new name in the container.
        mode: RenameMode,
    },
    /// Creates an empty directory of the shared file system.
    MakeDir {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
    },
    /// Removes a directory of the shared file system, if it has no packed files.
    RemoveDir {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Renames a directory of the shared file system, with the packed files below it.
    MoveDir {
        /// The old path.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// The new path.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
        /// Treatment of an existing file with the new name.
        mode: RenameMode,
    },
    /// Sets whether files created in a directory, and below it, are packed; `None` inherits from its parent.
    Mark {
        /// The directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// Whether to pack.
        packs: Option<bool>,
    },
    /// Requests whether files created in a directory are packed.
    Packs {
        /// The directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
    },
    /// Reports a new file at a path in the shared directory, and requests what is packed there.
    Named {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Requests the file at a path, if the packer knows it from a recent snapshot of the shared directory.
    Find {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Announces the size of an open file.
    Expect {
        /// The file.
        file: u64,
        /// Size in bytes.
        size: u64,
    },
}

impl PackRequest {
    /// As [`super::Request::is_read_only`].
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Stat { .. }
            | Self::List { .. }
            | Self::StatOpen { .. }
            | Self::Read { .. }
            | Self::Forget
            | Self::Packs { .. }
            | Self::Named { .. }
            | Self::Find { .. } => true,
            Self::Create { .. }
            | Self::Open { .. }
            | Self::Close { .. }
            | Self::Write { .. }
            | Self::Truncate { .. }
            | Self::Expect { .. }
            | Self::Change { .. }
            | Self::Sync { .. }
            | Self::Unlink { .. }
            | Self::Rename { .. }
            | Self::MakeDir { .. }
            | Self::RemoveDir { .. }
            | Self::MoveDir { .. }
            | Self::Mark { .. } => false,
        }
    }
}

/// The reply to a [`PackRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackReply {
    /// It is done.
    Done,
    /// Attributes of a file, also of one that was opened or created.
    Stat(PackedStat),
    /// Names with their file numbers, ascending; empty at the end.
    Names(Vec<(serde_bytes::ByteBuf, u64)>),
    /// Bytes of a file; fewer than requested at its end.
    Bytes(serde_bytes::ByteBuf),
    /// The file to be created is not packed; for `Find`, the packer will not know the name for some time.
    Declined,
    /// The sender must look up the name in the shared directory first. The time is that of the packer's clock.
    LookupFirst(Duration),
    /// Whether files are packed.
    Packs(bool),
    /// The name does not exist, neither packed nor in the shared directory.
    Missing,
    /// The content is external: the sender must change content and times of that file. The packer has done the rest.
    External {
        /// The packed file.
        file: u64,
    },
}
