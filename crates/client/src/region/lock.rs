//! Locks of a region.
//!
//! A lock is a lock of the region's file behind its largest byte. Each acquisition has an owner of its own, so that threads of a process
//! exclude each other too.

use super::{Parts, REGION_NUMBERS};
use crate::locks::FileLocks;
use crate::types::HandleNumber;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::lock::{FileLock, LockKind, LockRange};
use tameike_core::{InodeId, Result};

/// The locks that one process holds.
pub(super) struct HeldLocks {
    locks: Arc<FileLocks>,
    /// Under which the locks are released when the process ends.
    handle: HandleNumber,
    /// Owners, by number of the lock.
    owners: Mutex<BTreeMap<u32, u64>>,
}

fn range(number: u32) -> LockRange {
    let byte = REGION_NUMBERS + u64::from(number);
    LockRange { start: byte, last: byte }
}

impl HeldLocks {
    pub fn new(parts: &Parts) -> Self {
        let handle = HandleNumber(parts.number());
        Self { locks: parts.locks.clone(), handle, owners: Mutex::default() }
    }

    /// Takes a lock; waits until it is free. Returns its owner, for [`Self::holds`] or [`Self::release`].
    ///
    /// # Errors
    /// `EHOSTDOWN` if the coordinator has failed; `ENOLCK` if there are too many locks.
    pub async fn take(&self, parts: &Parts, region: InodeId, number: u32) -> Result<u64> {
        let owner = parts.number();
        let lock = FileLock {
            owner: self.locks.owner(owner),
            range: range(number),
            kind: LockKind::Exclusive,
            pid: 0,
        };
        let taken = self.locks.take(region, self.handle, lock, (self.locks.ticket(), true)).await;
        taken.inspect_err(|_| self.locks.forget(region, owner)).map(|()| owner)
    }

    /// The process holds a lock from now on.
    pub fn holds(&self, number: u32, owner: u64) {
        self.owners.lock().insert(number, owner);
    }

    /// The process no longer holds a lock; returns its owner.
    pub fn remove(&self, number: u32) -> Option<u64> {
        self.owners.lock().remove(&number)
    }

    /// Releases a lock.
    pub async fn release(&self, region: InodeId, number: u32, owner: u64) -> Result<()> {
        let unlocked = self.locks.unlock(region, owner, range(number)).await;
        self.locks.forget(region, owner);
        unlocked.inspect_err(|fault| log::warn!("releasing lock {number} of region {region}: {fault}"))
    }

    /// Releases all locks.
    pub async fn release_all(&self, region: InodeId) {
        self.owners.lock().clear();
        self.locks.released(region, self.handle).await;
    }
}
