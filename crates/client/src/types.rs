//! Types shared by frontends, views and the data engine: numbers of files and handles, open modes, and the buffers of reads and writes.

mod bytes;

pub use bytes::{FrameBytes, ReadBytes, WriteBytes};

use tameike_core::attr::{S_ISGID, S_ISUID, S_IXGRP};
use tameike_core::{Attr, FileKind};

/// A file of a view, as its frontend numbers it; 1 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

impl FileNumber {
    /// The root of every view.
    pub const ROOT: Self = Self(1);
}

/// A directory, and the name of an entry in it.
pub type Name<'a> = (FileNumber, &'a [u8]);

/// An open file or directory of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleNumber(pub u64);

/// Result of a lookup or a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// File number, shown as `st_ino`; each reply that carries it counts as one lookup, until the frontend forgets it.
    pub file: FileNumber,
    /// Attributes of the file.
    pub attr: Attr,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Allows reads.
    pub read: bool,
    /// Allows writes.
    pub write: bool,
    /// Opened with `O_APPEND`. Each write carries its own position ([`WriteAt`]).
    pub append: bool,
    /// Truncate to size 0 first.
    pub truncate: bool,
    /// Reads do not update the access time (`O_NOATIME`).
    pub noatime: bool,
    /// The kernel does not see this open: its cached pages of the file are neither kept nor dropped.
    pub beside_kernel: bool,
}

impl OpenMode {
    /// Returns true if this handle of a striped file of `size` bytes shall use direct I/O. The kernel does not know the offset of an
    /// append. Write-only files, and files with no data to read yet, are not worth a second copy in the page cache.
    pub fn is_direct(self, size: u64) -> bool {
        self.append || !self.read || (self.write && size == 0)
    }
}

/// Position of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset, even with `O_APPEND`: the kernel writes back mapped pages so, and writes of programs that have cleared the flag with
    /// `F_SETFL`.
    Offset(u64),
    /// At the end of the file, including appends of other nodes.
    End,
}

impl WriteAt {
    /// Position of the rest after `written` bytes.
    #[must_use]
    pub fn after(self, written: usize) -> Self {
        match self {
            Self::Offset(offset) => Self::Offset(offset + written as u64),
            Self::End => Self::End,
        }
    }
}

/// An opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Handle number.
    pub handle: HandleNumber,
    /// True if the kernel's cached pages of the file are valid.
    pub keep_cache: bool,
    /// True if this handle bypasses the kernel's page cache (direct I/O).
    pub direct: bool,
    /// True if the file has set-user-ID or set-group-ID bits that a direct write must clear ([`has_setid`]); for other handles, the
    /// kernel clears them.
    pub has_setid: bool,
}

/// Returns true if an executable of this mode may run with its owner's or group's privileges.
pub fn has_setid(mode: u16) -> bool {
    mode & (S_ISUID | S_ISGID) != 0
}

/// The mode after an unprivileged write: without set-user-ID, and without set-group-ID if the group may execute the file. The bits must not
/// apply to changed content.
pub fn without_setid(mode: u16) -> u16 {
    let lost = if mode & S_IXGRP == 0 { S_ISUID } else { S_ISUID | S_ISGID };
    mode & !lost
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    /// Cursor after this entry.
    pub next: u64,
    /// Inode number, as in `d_ino`.
    pub inode: u64,
    /// Type of the inode, as in `d_type`.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
}

/// Space and inodes of a view, as `statvfs` returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewSpace {
    /// Capacity in bytes.
    pub capacity: u64,
    /// Free space in bytes.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}
