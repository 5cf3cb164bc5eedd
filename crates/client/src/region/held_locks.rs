//! The locks of a region that a process holds.

use super::{Parts, REGION_NUMBERS};
use crate::locks::FileLocks;
use crate::types::HandleNumber;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::lock::LockRange;
use tameike_core::{InodeId, Result};

/// The locks that one process holds.
pub(super) struct HeldLocks {
    pub locks: Arc<FileLocks>,
    /// Under which the locks are released when the process ends.
    pub handle: HandleNumber,
    /// Owners, by number of the lock.
    pub owners: Mutex<BTreeMap<u32, u64>>,
}

pub(super) fn range(number: u32) -> LockRange {
    let byte = REGION_NUMBERS + u64::from(number);
    LockRange { start: byte, last: byte }
}

impl HeldLocks {
    pub fn new(parts: &Parts) -> Self {
        let handle = HandleNumber(parts.number());
        Self { locks: parts.locks.clone(), handle, owners: Mutex::default() }
    }

    /// Releases the lock of one acquisition.
    pub async fn release(&self, region: InodeId, owner: u64, number: u32) -> Result<()> {
        let unlocked = self.locks.unlock(region, owner, range(number)).await;
        self.locks.forget(region, owner);
        unlocked.inspect_err(|fault| log::warn!("releasing lock {number} of region {region}: {fault}"))
    }

    /// Releases all locks.
    pub async fn release_all(&self, parts: &Parts, region: InodeId) {
        debug_assert_eq!(parts.rpc.local(), self.locks.local());
        self.owners.lock().clear();
        self.locks.released(region, self.handle).await;
    }
}
