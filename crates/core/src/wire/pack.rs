//! Messages to the packer, the only agent of a job that appends to the container of its shared directory.
//!
//! Paths are relative to the shared directory. The number of an open file is unique in the container.

use crate::attr::{AttrChange, Timestamp};
use crate::ids::HomeId;
use crate::wire::meta::RenameMode;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The home whose primary is the packer.
pub const PACKER_HOME: HomeId = HomeId(0);
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

/// A file that a packer has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedOpen {
    /// The file.
    pub file: u64,
    /// The number of the packer, which is random.
    pub packer: u64,
}

/// A time of a packer's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackerTime {
    /// The number of the packer.
    pub packer: u64,
    /// The time.
    pub time: Duration,
}

/// A part of a file on the packer's device, which a backup of [`PACKER_HOME`] keeps as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPart {
    /// The name of the file.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The size to which the backup truncates the file before it writes, if it does.
    pub truncate: Option<u64>,
    /// Offset of the first byte.
    pub offset: u64,
    /// The bytes, at most [`PACKED_BYTES_MAX`].
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
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
    /// Creates and opens a regular file, which must not exist, unless it has this number: then an earlier packer has created it for the
    /// same request. Reply: `Opened`.
    Create {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// The number of the file, which is random.
        number: u64,
        /// Permission bits.
        mode: u16,
        /// User ID of the owner.
        uid: u32,
        /// Group ID.
        gid: u32,
        /// Time from [`PackReply::LookupFirst`], since which the sender found no such name in the shared directory; without it, the
        /// sender did so a moment before.
        looked: Option<PackerTime>,
    },
    /// Opens a file. Reply: `Opened`.
    Open {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Opens a file that an earlier packer had open. Reply: `Opened`.
    Reopen {
        /// The file.
        file: u64,
        /// A path that it had.
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
    /// Writes to a file that this packer has open.
    Write {
        /// The file.
        open: PackedOpen,
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
    /// Makes the container durable, and with it a file that this packer has open.
    Sync {
        /// The file.
        open: Option<PackedOpen>,
    },
    /// Makes the next reads come from the file system, not from the cache of the packer's host.
    Forget,
    /// Removes a file.
    Unlink {
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Its number. If the path has another file or none by now, the request is done. Without a number, any file is removed.
        number: Option<u64>,
    },
    /// Renames a file. If the new path has it already, the request is done.
    Rename {
        /// Its number.
        number: u64,
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
        /// Identifies the request: it is random. A later packer does not execute it again.
        call: u64,
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
    },
    /// Removes a directory of the shared file system, if it has no packed files.
    RemoveDir {
        /// Identifies the request: it is random. A later packer does not execute it again.
        call: u64,
        /// The path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Renames a directory of the shared file system, with the packed files below it.
    MoveDir {
        /// Identifies the request: it is random. A later packer does not execute it again.
        call: u64,
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
    /// Has a backup of [`PACKER_HOME`] keep a part of a file on the packer's device.
    Keep(KeptPart),
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
            | Self::Reopen { .. }
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
            | Self::Mark { .. }
            | Self::Keep(_) => false,
        }
    }
}

/// The reply to a [`PackRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackReply {
    /// It is done.
    Done,
    /// Attributes of a file.
    Stat(PackedStat),
    /// Names with their file numbers, ascending; empty at the end.
    Names(Vec<(serde_bytes::ByteBuf, u64)>),
    /// Bytes of a file; fewer than requested at its end.
    Bytes(serde_bytes::ByteBuf),
    /// The file to be created is not packed; for `Find`, the packer will not know the name for some time.
    Declined,
    /// The sender must look up the name in the shared directory first.
    LookupFirst(PackerTime),
    /// Whether files are packed.
    Packs(bool),
    /// The name does not exist, neither packed nor in the shared directory.
    Missing,
    /// The content is external: the sender must change content and times of that file. The packer has done the rest.
    External {
        /// The packed file.
        file: u64,
    },
    /// A file that was opened or created.
    Opened {
        /// Its attributes.
        stat: PackedStat,
        /// The number of the packer that has it open.
        packer: u64,
    },
}
