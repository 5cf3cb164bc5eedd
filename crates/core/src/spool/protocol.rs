//! Protocol between programs and the packer of a spool.
//!
//! Each request uses a new connection (`SOCK_SEQPACKET`), so that programs keep no descriptor. The reply is an errno,
//! or 0, as `i32` in host byte order. Paths are relative to the tree, without a slash at either end.

use crate::attr::AttrChange;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicU64;

/// Environment variable: directory of the spool.
pub const SPOOL_VARIABLE: &str = "TAMEIKE_SPOOL";
/// Environment variable: process id of the `tameike` that started the program; its children inherit it.
pub const RUN_VARIABLE: &str = "TAMEIKE_SPOOL_RUN";
/// Environment variable: the container's directory, without symbolic links.
pub const CONTAINER_VARIABLE: &str = "TAMEIKE_CONTAINER";
/// Environment variable: the container's directory as the user named it, as absolute path.
pub const NAME_VARIABLE: &str = "TAMEIKE_CONTAINER_NAME";

/// Directory of the tree, in the spool.
pub const TREE: &str = "tree";
/// Socket of the packer, in the spool.
pub const SOCKET: &str = "requests";
/// File of the shared [`Page`], in the spool.
pub const PAGE: &str = "page";

/// Prefix of the symbolic link for a file with several names: its inode number in the tree follows; the target is the
/// inode number that programs see.
pub const LINKED: &str = "linked.";

/// Size of the longest request, in bytes: two paths and some numbers.
pub const REQUEST_SIZE_MAX: usize = 16 << 10;

/// Memory shared by the packer and programs: the content of [`PAGE`].
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    /// Counts how often the packer found names that other writers added, so that directories must be listed again. 0
    /// while everything is in the tree.
    pub epoch: AtomicU64,
    /// Sequence lock: odd while the packer replaces a file and restores the time of its directory. Readers of a
    /// directory retry if it changed.
    pub changes: AtomicU64,
}

/// A request of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The reply comes when the tree has the container's entries of a directory.
    List {
        /// The directory.
        dir: Vec<u8>,
    },
    /// The reply comes when a packed file is a file of the tree.
    Fill {
        /// The file.
        path: Vec<u8>,
        /// Whether to leave it empty, because the program truncates it.
        is_emptied: bool,
    },
    /// unlinkat(2) without flags.
    Unlink {
        /// The file.
        path: Vec<u8>,
    },
    /// rmdir(2) of a directory.
    RemoveDir {
        /// The directory.
        path: Vec<u8>,
    },
    /// renameat2(2) of a name.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
        /// Whether an existing file at the new path is kept, as with `RENAME_NOREPLACE`.
        keeps: bool,
    },
    /// link(2), without following a symbolic link.
    Link {
        /// The existing path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
    },
    /// Changes attributes of anything but a directory.
    Change {
        /// The path; a symbolic link is not followed.
        path: Vec<u8>,
        /// The change.
        change: AttrChange,
    },
    /// The reply comes when all closed files, and an open one, are durable.
    Sync {
        /// The open file.
        path: Option<Vec<u8>>,
    },
    /// The reply comes when there is space for new files, or none can be freed: [`FREE_PART`](super::FREE_PART).
    WaitForSpace,
}

impl Request {
    /// Encodes the request; `None` if it exceeds [`REQUEST_SIZE_MAX`].
    pub fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok().filter(|bytes| bytes.len() <= REQUEST_SIZE_MAX)
    }

    /// Decodes a request; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}
