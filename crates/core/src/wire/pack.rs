//! Messages to the packer: the one agent of a job that adds to the container of its shared directory.
//!
//! Paths are relative to the shared directory. An open file is known by its number, which no other file of the container has.

use crate::attr::{AttrChange, Timestamp};
use crate::wire::meta::RenameMode;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most bytes of a file that one message carries.
pub const PACKED_BYTES_MAX: usize = 128 << 10;
/// Most names that one message carries.
pub const PACKED_NAMES_MAX: usize = 512;

/// What is known of a packed file, which is always a regular one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedStat {
    /// Its number.
    pub number: u64,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Names: 1, or none when it was removed.
    pub nlink: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Its content is in a file of its own, which has size and times; what is said of them here is older.
    pub is_outside: bool,
}

/// Whose attributes are changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// Those of what is at a path.
    At(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Those of an open file.
    Open(u64),
}

/// A request to the packer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackRequest {
    /// What is at a path.
    Stat {
        /// Where.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Names of a directory after one.
    List {
        /// Which directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// The name; empty for the first.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
    },
    /// A regular file is made, which must not exist, and opened.
    Create {
        /// Where.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// By [`PackReply::Look`], when its maker was told to look, since when the shared directory was found to have nothing there; else that
        /// was so a moment before.
        looked: Option<Duration>,
    },
    /// Opens a file.
    Open {
        /// Where it is.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Ends an open.
    Close {
        /// Of which file.
        file: u64,
    },
    /// Attributes of an open file.
    Look {
        /// Which file.
        file: u64,
    },
    /// Bytes of an open file.
    Read {
        /// Which file.
        file: u64,
        /// From where on.
        offset: u64,
        /// How many: at most [`PACKED_BYTES_MAX`].
        length: u32,
    },
    /// Writes to an open file.
    Write {
        /// Which file.
        file: u64,
        /// Where; at its end without.
        offset: Option<u64>,
        /// At most [`PACKED_BYTES_MAX`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Sets the size of an open file.
    Truncate {
        /// Which file.
        file: u64,
        /// In bytes.
        size: u64,
    },
    /// Changes attributes.
    Change {
        /// Whose.
        of: Changed,
        /// The change.
        change: AttrChange,
    },
    /// Makes safe what the container has, an open file with it.
    Sync {
        /// Which file.
        file: Option<u64>,
    },
    /// The next reads come from the file system, not from memory of the packer's host.
    Forget,
    /// Removes a file.
    Unlink {
        /// Where it is.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Gives a file another name.
    Rename {
        /// The old one.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// The new one.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
        /// What becomes of what has the new name in the container.
        mode: RenameMode,
    },
    /// Makes a directory of the shared file system, in which nothing is.
    MakeDir {
        /// Where.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits.
        mode: u16,
    },
    /// Removes a directory of the shared file system, if nothing is in it here.
    RemoveDir {
        /// Where it is.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Gives a directory of the shared file system another name, with all that is below it here.
    MoveDir {
        /// The old one.
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        /// The new one.
        #[serde(with = "serde_bytes")]
        to: Vec<u8>,
        /// What becomes of what has the new name.
        mode: RenameMode,
    },
    /// Says whether files that are made in a directory, and below, are packed; by what is above it without a word.
    Mark {
        /// Which directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// Whether they are.
        packs: Option<bool>,
    },
    /// Whether files that are made in a directory are packed.
    Packs {
        /// Which directory.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
    },
    /// Something was made at a path in the shared directory. What is packed there.
    Named {
        /// Where.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// What is at a path, if that can be known without a look at it in the shared directory: by the names that this had a moment ago.
    Find {
        /// Where.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// An open file will be so large.
    Expect {
        /// Which file.
        file: u64,
        /// In bytes.
        size: u64,
    },
}

impl PackRequest {
    /// Whether serving it twice does no more than serving it once.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Stat { .. }
            | Self::List { .. }
            | Self::Look { .. }
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

/// What the packer answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackReply {
    /// It is done.
    Done,
    /// Attributes of a file: of one that was opened or made, too.
    Stat(PackedStat),
    /// Names with the numbers of their files, in their order; none at the end.
    Names(Vec<(serde_bytes::ByteBuf, u64)>),
    /// Bytes of a file: fewer than were asked for at its end.
    Bytes(serde_bytes::ByteBuf),
    /// A file that is to be made here is none that is packed; of a name that is to be found, nothing will be known for some time.
    Declined,
    /// The shared directory is to be looked at first. At this time of the packer's clock.
    Look(Duration),
    /// Whether files are packed.
    Packs(bool),
    /// Nothing is there, neither packed nor in the shared directory.
    Missing,
    /// What concerns content and times is to be done with the file that has this one's content; all else is done.
    Outside {
        /// Of which packed file.
        file: u64,
    },
}
