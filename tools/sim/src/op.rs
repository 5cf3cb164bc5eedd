//! System calls of the simulated programs.

use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::unit::SpaceChange;

/// Directories that exist from the start.
pub const DIRS: [&str; 3] = ["a", "b", "a/c"];
/// Open files of one node and view.
pub const SLOTS: u8 = 3;
/// The extended attribute that programs set and get.
pub const XATTR: &[u8] = b"user.sim";

/// Flags of `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `O_WRONLY` or `O_RDWR`.
    pub write: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub append: bool,
    /// Empties the file (`O_TRUNC`).
    pub truncate: bool,
    /// Creates the file if it is missing (`O_CREAT`).
    pub create: bool,
    /// Fails if the file exists (`O_EXCL`).
    pub exclusive: bool,
}

impl Flags {
    /// Flags `O_RDONLY`.
    pub const READ: Self =
        Self { write: false, append: false, truncate: false, create: false, exclusive: false };
    /// Flags `O_RDWR`.
    pub const WRITE: Self = Self { write: true, ..Self::READ };
    /// Flags `O_RDWR|O_TRUNC`.
    pub const TRUNCATE: Self = Self { truncate: true, ..Self::WRITE };
    /// Flags `O_RDWR|O_CREAT`.
    pub const CREATE: Self = Self { create: true, ..Self::WRITE };
    /// Flags `O_RDWR|O_CREAT|O_APPEND`.
    pub const APPEND: Self = Self { append: true, ..Self::CREATE };
}

/// One system call. Open files are in numbered slots of their node and view.
///
/// - `tag` selects the pattern of the bytes of a write.
/// - `Space` is `fallocate` with `FALLOC_FL_KEEP_SIZE`.
/// - `Lock` and `Unlock` are `flock` without a range, `fcntl` with one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are the system calls of the same names")]
pub enum Op {
    Open { slot: u8, path: String, flags: Flags },
    Read { slot: u8, offset: u64, length: u32 },
    Write { slot: u8, offset: u64, length: u32, tag: u64 },
    Space { slot: u8, change: SpaceChange, offset: u64, length: u64 },
    Lock { slot: u8, range: Option<LockRange>, kind: LockKind, wait: bool },
    Unlock { slot: u8, range: Option<LockRange> },
    Fsync { slot: u8 },
    Close { slot: u8 },
    Truncate { path: String, size: u64 },
    Stat { path: String },
    List { path: String },
    Mkdir { path: String },
    Rmdir { path: String },
    Unlink { path: String },
    Rename { from: String, to: String, mode: RenameMode },
    Link { from: String, to: String },
    Symlink { path: String, target: String },
    Readlink { path: String },
    Chmod { path: String, mode: u16 },
    SetXattr { path: String, value: u64 },
    GetXattr { path: String },
    SyncDir { path: String },
}

impl Op {
    /// Opens a file in a slot.
    pub fn open(slot: u8, path: &str, flags: Flags) -> Self {
        Self::Open { slot, path: path.to_owned(), flags }
    }

    /// Reads attributes.
    pub fn stat(path: &str) -> Self {
        Self::Stat { path: path.to_owned() }
    }

    /// Removes a name of a file.
    pub fn unlink(path: &str) -> Self {
        Self::Unlink { path: path.to_owned() }
    }

    /// Renames a file or directory.
    pub fn rename(from: &str, to: &str, mode: RenameMode) -> Self {
        Self::Rename { from: from.to_owned(), to: to.to_owned(), mode }
    }

    /// Returns the slot of the open file that the call uses.
    pub fn slot(&self) -> Option<u8> {
        match self {
            Self::Read { slot, .. }
            | Self::Write { slot, .. }
            | Self::Space { slot, .. }
            | Self::Lock { slot, .. }
            | Self::Unlock { slot, .. }
            | Self::Fsync { slot }
            | Self::Close { slot } => Some(*slot),
            _ => None,
        }
    }

    /// Returns the paths that the call names.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Open { path, .. }
            | Self::Truncate { path, .. }
            | Self::Stat { path }
            | Self::List { path }
            | Self::Mkdir { path }
            | Self::Rmdir { path }
            | Self::Unlink { path }
            | Self::Symlink { path, .. }
            | Self::Readlink { path }
            | Self::Chmod { path, .. }
            | Self::SetXattr { path, .. }
            | Self::GetXattr { path }
            | Self::SyncDir { path } => vec![path],
            Self::Rename { from, to, .. } | Self::Link { from, to } => vec![from, to],
            // All others use a descriptor.
            _ => Vec::new(),
        }
    }

    /// Returns true if the call acquires or releases locks.
    pub fn locks(&self) -> bool {
        matches!(self, Self::Lock { .. } | Self::Unlock { .. })
    }

    /// Returns true if the call can change names, or must be ordered with calls that do.
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Mkdir { .. }
                | Self::Rmdir { .. }
                | Self::Unlink { .. }
                | Self::Rename { .. }
                | Self::Link { .. }
                | Self::Symlink { .. }
        )
    }

    /// Returns true for an open without `O_CREAT`.
    pub fn only_opens(&self) -> bool {
        matches!(self, Self::Open { flags, .. } if !flags.create)
    }

    /// Returns true if the call changes attributes of an inode.
    pub fn changes_inode(&self) -> bool {
        matches!(self, Self::Truncate { .. } | Self::Chmod { .. } | Self::SetXattr { .. })
    }
}
