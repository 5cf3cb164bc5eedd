//! What programs and the packer of a spool say to each other, and where.
//!
//! One request and one reply on a connection of its own (`SOCK_SEQPACKET`), so that no program has one to keep. A reply is the number of
//! what went wrong, or 0, as `i32` in the order of bytes of the host. Paths are relative to the tree, without a slash at either end.

use crate::attr::AttrChange;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicU64;

/// Names the directory of the spool.
pub const SPOOL_VARIABLE: &str = "TAMEIKE_SPOOL";
/// Names the process whose program one is, or a child of that.
pub const RUN_VARIABLE: &str = "TAMEIKE_SPOOL_RUN";
/// The container's directory, without symbolic links.
pub const CONTAINER_VARIABLE: &str = "TAMEIKE_CONTAINER";
/// The same as the user calls it, from the root on.
pub const NAME_VARIABLE: &str = "TAMEIKE_CONTAINER_NAME";

/// The tree of files, in the spool.
pub const TREE: &str = "tree";
/// The packer's socket.
pub const SOCKET: &str = "requests";
/// What all see at once: [`Page`].
pub const PAGE: &str = "page";

/// Begins the name of a symbolic link whose target is the number, as programs are told it, of a file with several names; then comes
/// its number in the tree.
pub const LINKED: &str = "linked.";

/// Bytes of the longest request: two paths and some numbers.
pub const REQUEST_SIZE_MAX: usize = 16 << 10;

/// Memory that the packer and programs share: the content of [`PAGE`].
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    /// Counts the times at which the packer has learnt of names that others have added: directories are listed anew. 0 while there is
    /// nothing that is not in the tree.
    pub epoch: AtomicU64,
    /// Odd while the packer puts one thing in the place of another and gives the directory its time back, and another number afterwards: what a
    /// look at a directory has found meanwhile is looked at again.
    pub changes: AtomicU64,
}

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What the container has in a directory is in the tree when the reply comes.
    List {
        /// The directory.
        dir: Vec<u8>,
    },
    /// A packed file is a file of the tree when the reply comes.
    Fill {
        /// The file.
        path: Vec<u8>,
        /// It is empty, as its content would go.
        is_emptied: bool,
    },
    /// unlinkat(2) without flags.
    Unlink {
        /// What goes.
        path: Vec<u8>,
    },
    /// rmdir(2).
    RemoveDir {
        /// What goes.
        path: Vec<u8>,
    },
    /// renameat2(2).
    Rename {
        /// What it is called.
        from: Vec<u8>,
        /// What it will be called.
        to: Vec<u8>,
        /// `RENAME_NOREPLACE`.
        keeps: bool,
    },
    /// link(2), which follows no symbolic link.
    Link {
        /// What there is.
        from: Vec<u8>,
        /// What it will be called, too.
        to: Vec<u8>,
    },
    /// Attributes of what is no directory.
    Change {
        /// What is changed; no symbolic link is followed.
        path: Vec<u8>,
        /// How.
        change: AttrChange,
    },
    /// What was closed, and a file that is open, are safe when the reply comes.
    Sync {
        /// The open file.
        path: Option<Vec<u8>>,
    },
    /// There is room for new files when the reply comes, or cannot be any: [`FREE_PART`](super::FREE_PART).
    Room,
}

impl Request {
    /// As bytes.
    ///
    /// # Errors
    /// `None` when they are more than [`REQUEST_SIZE_MAX`].
    pub fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok().filter(|bytes| bytes.len() <= REQUEST_SIZE_MAX)
    }

    /// From bytes; `None` when they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}
