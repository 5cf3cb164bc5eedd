//! What a node reclaims from the new primary of a home.
//!
//! The opens and locks of programs are in the memory of the primary only. If another node becomes the primary, each node sends what its
//! programs have open and locked there. The new primary serves the home when it has the parts of all nodes that are not excluded.

use crate::ids::{HomeId, InodeId, OpenId};
use crate::wire::cache::Stamp;
use crate::wire::lock::FileLock;
use serde::{Deserialize, Serialize};

/// Largest sum of the sizes of the parts of one [`Reclaim`], as [`Reclaim::weight`] counts them.
pub const RECLAIM_BYTES_MAX: usize = crate::limits::MESSAGE_SIZE_MAX / 2;

/// A file of the cache view that a node has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its number.
    pub inode: InodeId,
    /// Its path below the shared directory.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Its stamp at the open.
    pub stamp: Stamp,
}

/// What programs of the sender have open and locked at homes whose primary has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Homes of which this is the last part.
    pub complete: Vec<HomeId>,
    /// Open inodes of the job-shared view.
    pub opens: Vec<(InodeId, OpenId)>,
    /// Open files of the cache view.
    pub files: Vec<OpenFile>,
    /// Locks.
    pub locks: Vec<(InodeId, FileLock)>,
}

/// The reply to a [`Reclaim`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Locks that are lost: the sender was excluded, and another node has taken a conflicting lock meanwhile.
    pub lost_locks: Vec<(InodeId, FileLock)>,
}

impl Reclaim {
    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.path.len() + 80).sum();
        3 * self.complete.len() + 20 * self.opens.len() + files + 60 * self.locks.len()
    }
}
