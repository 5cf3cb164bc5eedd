//! One lock per file, inode or unit, made when first asked for and forgotten when nobody holds it.

use async_lock::{RwLock, RwLockReadGuardArc, RwLockWriteGuardArc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Locks that nobody holds are swept when there are this many.
const SWEEP_MIN: usize = 1024;

struct Table<K> {
    locks: BTreeMap<K, Arc<RwLock<()>>>,
    sweep_at: usize,
}

/// Locks by key.
pub(crate) struct Locks<K>(Mutex<Table<K>>);

impl<K: Ord + Copy> Locks<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Table { locks: BTreeMap::new(), sweep_at: SWEEP_MIN }))
    }

    fn of(&self, key: K) -> Arc<RwLock<()>> {
        let mut table = self.0.lock();
        if table.locks.len() >= table.sweep_at {
            table.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            table.sweep_at = SWEEP_MIN.max(2 * table.locks.len());
        }
        table.locks.entry(key).or_default().clone()
    }

    /// Holds the lock of `key` together with others who share it.
    pub(crate) async fn share(&self, key: K) -> RwLockReadGuardArc<()> {
        self.of(key).read_arc().await
    }

    /// Holds the lock of `key` alone.
    pub(crate) async fn hold(&self, key: K) -> RwLockWriteGuardArc<()> {
        self.of(key).write_arc().await
    }
}
