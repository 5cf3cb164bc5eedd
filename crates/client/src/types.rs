//! Values that go between frontends, views and the data engine: numbers of files and handles, how files are opened, and the bytes of reads
//! and writes.

mod bytes;

pub use bytes::{FrameBytes, ReadBytes, WriteBytes};

use tameike_core::{Attr, FileKind};

/// A file of a view, as its frontend numbers it; 1 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

impl FileNumber {
    /// The root of every view.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleNumber(pub u64);

/// A file found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number, which `st_ino` shows; each time it is told counts as one look-up, until forgotten.
    pub file: FileNumber,
    /// Its attributes.
    pub attr: Attr,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// With `O_APPEND`. Writes say by themselves where they go ([`WriteAt`]).
    pub append: bool,
    /// Cut to size 0 first.
    pub truncate: bool,
    /// Reads are no accesses (`O_NOATIME`).
    pub noatime: bool,
    /// The kernel does not hear of it: what it has cached of the file is neither kept nor dropped.
    pub beside_kernel: bool,
}

impl OpenMode {
    /// Whether what goes through such a handle of a striped file of `size` bytes passes by the kernel's pages: the kernel
    /// does not know where an append lands, and bytes of who only writes, or has nothing yet to read, are not worth a second
    /// copy on the node.
    pub fn is_direct(self, size: u64) -> bool {
        self.append || !self.read || (self.write && size == 0)
    }
}

/// Where a write puts its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset, also where the file was opened with `O_APPEND`: so the kernel writes back the pages of a mapping, and
    /// whoever has cleared the flag since with `F_SETFL`.
    Offset(u64),
    /// At the end of the file, wherever other nodes have moved it.
    End,
}

impl WriteAt {
    /// Where the rest goes when `written` bytes are written.
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
    /// Its number.
    pub handle: HandleNumber,
    /// Whether what the kernel has cached of the file is still true.
    pub keep_cache: bool,
    /// Whether what goes through this handle shall pass by the kernel's pages.
    pub direct: bool,
    /// Whether the file gives rights to who runs it, which a write past the kernel's pages must take away
    /// ([`gives_rights`]); for a handle that is not direct, the kernel sees to it.
    pub gives_rights: bool,
}

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_RUNS: u16 = 0o010;

/// Whether a file of this mode may give rights to who runs it.
pub fn gives_rights(mode: u16) -> bool {
    mode & (SETUID | SETGID) != 0
}

/// What is left of a mode when somebody without privileges writes to the file: what was found worth the rights is not what
/// would be run with them. A file that its group does not run gives none of the group's.
pub fn without_rights(mode: u16) -> u16 {
    let lost = if mode & GROUP_RUNS == 0 { SETUID } else { SETUID | SETGID };
    mode & !lost
}

/// One entry of a directory, as its view was told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    /// Cursor after this entry.
    pub next: u64,
    /// `d_ino`.
    pub inode: u64,
    /// `d_type`.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
}

/// Space and files of a view, as `statvfs` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewSpace {
    /// In all, in bytes.
    pub capacity: u64,
    /// Free, in bytes.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}
