//! One lock per inode whose content is being moved or cut; made when first needed, gone when free.

use async_lock::{Mutex as AsyncMutex, MutexGuardArc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::InodeId;

/// The locks.
#[derive(Default)]
pub(super) struct InodeLocks(Mutex<BTreeMap<InodeId, Arc<AsyncMutex<()>>>>);

impl InodeLocks {
    /// Waits until nobody else holds the inode's lock.
    pub(super) async fn lock(&self, inode: InodeId) -> InodeGuard<'_> {
        let lock = self.0.lock().entry(inode).or_default().clone();
        InodeGuard { locks: self, inode, guard: Some(lock.lock_arc().await) }
    }
}

/// Holds the lock of one inode.
pub(super) struct InodeGuard<'a> {
    locks: &'a InodeLocks,
    inode: InodeId,
    guard: Option<MutexGuardArc<()>>,
}

impl Drop for InodeGuard<'_> {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        drop(self.guard.take());
        if locks.get(&self.inode).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.inode);
        }
    }
}
