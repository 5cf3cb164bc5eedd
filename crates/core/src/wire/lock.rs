//! Messages to the lock service of an inode's home: advisory locks of files, in the job-shared and the cache view.
//!
//! A lock belongs to an owner: what the kernel of a node calls by one number, a process for `fcntl`, an open file
//! description for `flock` and for the locks of `F_OFD_SETLK`. Nothing of this is ever written to a device: a lock
//! ends with its owner, with its owner's node, and with the home that keeps it.

use crate::ids::{InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// Who has a lock, or waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The node it is on.
    pub node: NodeId,
    /// What the kernel there calls it in this view.
    pub number: u64,
}

/// How a lock excludes those of other owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Excludes exclusive ones.
    Shared,
    /// Excludes all.
    Exclusive,
}

/// Bytes of a file, without regard to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte; at least `start`.
    pub last: u64,
}

impl LockRange {
    /// All bytes that a file can ever have.
    pub const ALL: Self = Self { start: 0, last: u64::MAX };

    /// Whether the ranges have a byte in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// A lock, held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// Whose it is.
    pub owner: LockOwner,
    /// Of which bytes.
    pub range: LockRange,
    /// Whom it excludes.
    pub kind: LockKind,
    /// The process that asked for it, as its node numbers it.
    pub pid: u32,
}

impl FileLock {
    /// Whether the two cannot be held at the same time.
    pub fn excludes(&self, other: &Self) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        exclusive && self.owner != other.owner && self.range.overlaps(other.range)
    }
}

/// How a wait for a lock ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitEnd {
    /// A signal: the wait fails with `EINTR`.
    Interrupted,
    /// It would last for ever: the wait fails with `EDEADLK`.
    Deadlock,
    /// It would last for ever out of courtesy to others that wait: it ends with the lock, as soon as nobody has one
    /// that excludes it.
    Overtake,
}

/// A request to the lock service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockRequest {
    /// Whether the lock could be had.
    Test {
        /// Of which file.
        inode: InodeId,
        /// The lock.
        lock: FileLock,
    },
    /// Takes a lock, in place of those that its owner has of these bytes.
    Lock {
        /// Of which file.
        inode: InodeId,
        /// The lock.
        lock: FileLock,
        /// Number of the request; none of the asking node has another one's.
        ticket: u64,
        /// Whether to wait for it.
        wait: bool,
    },
    /// Gives locks back.
    Unlock {
        /// Of which file.
        inode: InodeId,
        /// Whose.
        owner: LockOwner,
        /// Of which bytes.
        range: LockRange,
    },
    /// Ends a wait.
    EndWait {
        /// For a lock of which file.
        inode: InodeId,
        /// Number of the request that waits.
        ticket: u64,
        /// How.
        end: WaitEnd,
    },
    /// A request whose answer never came did not happen, also when it is yet to come: its bytes are unlocked.
    Withdraw {
        /// Of which file.
        inode: InodeId,
        /// Whose.
        owner: LockOwner,
        /// Of which bytes.
        range: LockRange,
        /// Number of the request.
        ticket: u64,
    },
    /// For whom an owner waits.
    Blockers {
        /// For a lock of which file.
        inode: InodeId,
        /// Who waits.
        owner: LockOwner,
    },
}

/// One for whom an owner waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// The request that waits.
    pub ticket: u64,
    /// For whom.
    pub owner: LockOwner,
    /// Whether that one has a lock in the way, or only came first.
    pub holds: bool,
}

/// The answer to a [`LockRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockReply {
    /// Done.
    Done,
    /// A lock that is in the way, if there is one.
    Conflict(Option<FileLock>),
    /// For whom the owner waits.
    Blockers(Vec<Blocker>),
}
