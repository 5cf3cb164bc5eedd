//! Messages to the lock service of an inode's home: advisory locks of files, in the job-shared and the cache view.
//!
//! The owner of a lock is a number from a node's kernel: of a process for `fcntl`, of an open file description for
//! `flock` and `F_OFD_SETLK`. Locks are in memory only: a lock ends with its owner, the owner's node, or the home.

use crate::ids::{InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// The owner of a lock, or of a wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The owner's node.
    pub node: NodeId,
    /// The owner's number in this view, from the kernel.
    pub number: u64,
}

/// Whether a lock is shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Conflicts with exclusive locks of other owners.
    Shared,
    /// Conflicts with all locks of other owners.
    Exclusive,
}

/// A byte range of a file, which may exceed its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte; at least `start`.
    pub last: u64,
}

impl LockRange {
    /// The range of all possible bytes.
    pub const ALL: Self = Self { start: 0, last: u64::MAX };

    /// Returns true if the ranges have a byte in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// A lock, held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// The owner.
    pub owner: LockOwner,
    /// The locked bytes.
    pub range: LockRange,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The process id of the requester on its node.
    pub pid: u32,
}

impl FileLock {
    /// Returns true if the two locks conflict.
    pub fn excludes(&self, other: &Self) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        exclusive && self.owner != other.owner && self.range.overlaps(other.range)
    }
}

/// The way in which a wait for a lock ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitEnd {
    /// A signal: the wait fails with `EINTR`.
    Interrupted,
    /// A deadlock: the wait fails with `EDEADLK`.
    Deadlock,
    /// A deadlock caused only by fairness to other waiters: the owner gets the lock as soon as no other owner holds a
    /// conflicting one.
    Overtake,
}

/// A request to the lock service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockRequest {
    /// Tests whether the lock is free.
    Test {
        /// The file.
        inode: InodeId,
        /// The lock.
        lock: FileLock,
    },
    /// Takes a lock, which replaces the owner's locks of these bytes.
    Lock {
        /// The file.
        inode: InodeId,
        /// The lock.
        lock: FileLock,
        /// Number of the request, unique on its node.
        ticket: u64,
        /// Whether to wait.
        wait: bool,
    },
    /// Releases locks.
    Unlock {
        /// The file.
        inode: InodeId,
        /// The owner.
        owner: LockOwner,
        /// The bytes.
        range: LockRange,
    },
    /// Ends a wait.
    EndWait {
        /// The file.
        inode: InodeId,
        /// Number of the waiting request.
        ticket: u64,
        /// The way it ends.
        end: WaitEnd,
    },
    /// Cancels a request whose reply was lost, even if the request arrives later: unlocks its bytes.
    Withdraw {
        /// The file.
        inode: InodeId,
        /// The owner.
        owner: LockOwner,
        /// The bytes.
        range: LockRange,
        /// Number of the request.
        ticket: u64,
    },
    /// Requests the owners that block an owner.
    Blockers {
        /// The file.
        inode: InodeId,
        /// The waiting owner.
        owner: LockOwner,
    },
}

impl LockRequest {
    /// Returns true if serving the request twice has the same effect as serving it once.
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Test { .. } | Self::Blockers { .. } => true,
            Self::Lock { .. } | Self::Unlock { .. } | Self::EndWait { .. } | Self::Withdraw { .. } => false,
        }
    }
}

/// An owner that blocks another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// The waiting request.
    pub ticket: u64,
    /// The blocking owner.
    pub owner: LockOwner,
    /// Whether it holds a conflicting lock; else it only waits ahead.
    pub holds: bool,
}

/// The reply to a [`LockRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockReply {
    /// The request was carried out.
    Done,
    /// A conflicting lock, if there is one.
    Conflict(Option<FileLock>),
    /// The blocking owners.
    Blockers(Vec<Blocker>),
}
