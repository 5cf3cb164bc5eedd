//! Reader-writer locks by key (unit, file, inode), which exist only while in use.

use async_lock::{RwLock, RwLockReadGuardArc, RwLockWriteGuardArc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A set of reader-writer locks by key.
pub struct Locks<K: Ord + Copy>(Arc<Table<K>>);

type Table<K> = Mutex<BTreeMap<K, Arc<RwLock<()>>>>;

/// A reference to a lock in the table.
struct Ticket<K: Ord + Copy> {
    table: Arc<Table<K>>,
    key: K,
    lock: Arc<RwLock<()>>,
}

impl<K: Ord + Copy> Drop for Ticket<K> {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        // The references of the table and of this ticket. New tickets need the table's lock.
        if Arc::strong_count(&self.lock) == 2 {
            table.remove(&self.key);
        }
    }
}

/// A shared lock, until dropped.
pub struct Shared<K: Ord + Copy> {
    _guard: RwLockReadGuardArc<()>,
    _ticket: Ticket<K>,
}

/// An exclusive lock, until dropped.
pub struct Held<K: Ord + Copy> {
    _guard: RwLockWriteGuardArc<()>,
    _ticket: Ticket<K>,
}

impl<K: Ord + Copy> Default for Locks<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord + Copy> Locks<K> {
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn ticket(&self, key: K) -> Ticket<K> {
        let lock = self.0.lock().entry(key).or_default().clone();
        Ticket { table: self.0.clone(), key, lock }
    }

    /// Takes the lock of `key` shared.
    pub async fn share(&self, key: K) -> Shared<K> {
        let ticket = self.ticket(key);
        Shared { _guard: ticket.lock.read_arc().await, _ticket: ticket }
    }

    /// Takes the lock of `key` exclusively.
    pub async fn hold(&self, key: K) -> Held<K> {
        let ticket = self.ticket(key);
        Held { _guard: ticket.lock.write_arc().await, _ticket: ticket }
    }

    /// Takes the lock of `key` exclusively if it is free.
    pub fn try_hold(&self, key: K) -> Option<Held<K>> {
        let ticket = self.ticket(key);
        let guard = ticket.lock.try_write_arc()?;
        Some(Held { _guard: guard, _ticket: ticket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn unused_locks_take_no_memory() {
        let locks = Locks::default();
        let readers = [locks.share(7).now_or_never(), locks.share(7).now_or_never()];
        assert!(readers.iter().all(Option::is_some), "readers share");
        let mut waiting = Box::pin(locks.hold(7));
        assert!((&mut waiting).now_or_never().is_none());
        drop(waiting);
        assert!(locks.try_hold(7).is_none());
        assert!(locks.try_hold(8).is_some(), "another key is another lock");
        drop(readers);
        assert!(locks.is_idle());
        let held = locks.try_hold(7).expect("the lock is free");
        assert!(locks.share(7).now_or_never().is_none());
        drop(held);
        assert!(locks.is_idle());
    }
}
