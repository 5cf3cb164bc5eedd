//! Attributes of an inode, as POSIX `stat` gives them.

use crate::ids::{Generation, InodeId};
use crate::placement::Layout;
use serde::{Deserialize, Serialize};

/// A time since 1970-01-01 UTC, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix domain socket.
    Socket,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Which inode.
    pub inode: InodeId,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: `0o7777`.
    pub mode: u16,
    /// Links to the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Version of the content.
    pub generation: Generation,
    /// Where the data lies.
    pub layout: Layout,
    /// Whether the content is kept in the inode record (files up to `INLINE_SIZE_MAX`).
    pub inline: bool,
    /// Whether the file may have holes, or space set aside: then only the homes of its units know what it takes,
    /// and `blocks` is a guess.
    pub sparse: bool,
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the request.
    Now,
    /// This time.
    To(Timestamp),
}

/// Changes to attributes; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: cuts or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Layout of a directory, for the children born after.
    pub layout: Option<Layout>,
}
