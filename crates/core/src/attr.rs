//! Attributes of an inode, as in POSIX `stat`.

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

/// The times that decide whether a read updates the access time, as with `relatime`: the first read after each change,
/// and once a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub access: Timestamp,
    /// Last change, of content or attributes.
    pub change: Timestamp,
}

impl Times {
    /// Age of an access time after which the next read updates it, in seconds.
    const ACCESS_AGE_MAX: i64 = 24 * 60 * 60;

    /// Returns true if a read at `time` updates the access time.
    pub fn counts(self, time: Timestamp) -> bool {
        let age = time.seconds.saturating_sub(self.access.seconds);
        time > self.access && (self.access <= self.change || age >= Self::ACCESS_AGE_MAX)
    }
}

/// The set-user-ID mode bit.
pub const S_ISUID: u16 = libc::S_ISUID as u16;
/// The sticky mode bit. On a directory: only owners remove names.
pub const S_ISVTX: u16 = libc::S_ISVTX as u16;
/// The set-group-ID mode bit. On a directory: new files take its group.
pub const S_ISGID: u16 = libc::S_ISGID as u16;
/// The mode bit that lets the group execute the file, or search the directory.
pub const S_IXGRP: u16 = libc::S_IXGRP as u16;

/// Type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// A directory.
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

impl FileKind {
    /// The type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharacterDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode.
    pub inode: InodeId,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: `0o7777`.
    pub mode: u16,
    /// Links to the inode.
    pub nlink: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
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
    /// Placement of the data.
    pub layout: Layout,
    /// Whether the content is in the inode record (files up to `INLINE_SIZE_MAX`).
    pub inline: bool,
    /// Whether the file may have holes or reserved space: then only the homes of its units know its use, and `blocks`
    /// is an estimate.
    pub sparse: bool,
}

impl Attr {
    /// The times that decide whether a read updates the access time.
    pub fn times(&self) -> Times {
        Times { access: self.atime, change: self.mtime.max(self.ctime) }
    }
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the request.
    Now,
    /// This time.
    To(Timestamp),
}

/// Changes of attributes; `None` leaves one unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// New user ID of the owner.
    pub uid: Option<u32>,
    /// New group ID.
    pub gid: Option<u32>,
    /// Size in bytes: truncates, or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Layout of a directory, for children created later.
    pub layout: Option<Layout>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_updates_the_access_time_after_changes_and_once_a_day() {
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        let times = |access, change| Times { access, change };
        assert!(times(at(5, 0), at(5, 0)).counts(at(5, 1)));
        assert!(times(at(5, 0), at(9, 0)).counts(at(6, 0)));
        assert!(!times(at(5, 1), at(5, 0)).counts(at(6, 0)));
        assert!(!times(at(5, 1), at(5, 0)).counts(at(5 + 86_399, 0)));
        assert!(times(at(5, 1), at(5, 0)).counts(at(5 + 86_400, 0)));
        // The time never moves back, even if a program set it.
        assert!(!times(at(5, 0), at(9, 0)).counts(at(5, 0)));
        assert!(!times(at(i64::MAX, 0), at(i64::MIN, 0)).counts(at(i64::MIN, 0)));
        assert!(times(at(i64::MIN, 0), at(0, 0)).counts(at(i64::MAX, 0)));
    }
}
