//! One lock per unit in use.

use super::UnitId;
use async_lock::{RwLock, RwLockReadGuardArc, RwLockWriteGuardArc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Locks of the units that somebody holds or waits for.
#[derive(Clone, Default)]
pub(super) struct Locks(Arc<Mutex<BTreeMap<UnitId, Arc<RwLock<()>>>>>);

/// A claim on a lock's place in the map.
struct Ticket {
    locks: Locks,
    unit: UnitId,
    lock: Arc<RwLock<()>>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        // The map's and this one: tickets are only made under the map's lock.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.unit);
        }
    }
}

/// A unit held against writers.
pub(super) struct ReadGuard {
    _guard: RwLockReadGuardArc<()>,
    _ticket: Ticket,
}

/// A unit held alone.
pub(super) struct WriteGuard {
    _guard: RwLockWriteGuardArc<()>,
    _ticket: Ticket,
}

impl Locks {
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn ticket(&self, unit: UnitId) -> Ticket {
        let lock = self.0.lock().entry(unit).or_default().clone();
        Ticket { locks: self.clone(), unit, lock }
    }

    pub(super) async fn read(&self, unit: UnitId) -> ReadGuard {
        let ticket = self.ticket(unit);
        ReadGuard { _guard: ticket.lock.read_arc().await, _ticket: ticket }
    }

    pub(super) async fn write(&self, unit: UnitId) -> WriteGuard {
        let ticket = self.ticket(unit);
        WriteGuard { _guard: ticket.lock.write_arc().await, _ticket: ticket }
    }

    pub(super) fn try_write(&self, unit: UnitId) -> Option<WriteGuard> {
        let ticket = self.ticket(unit);
        let guard = ticket.lock.try_write_arc()?;
        Some(WriteGuard { _guard: guard, _ticket: ticket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tameike_core::InodeId;

    #[test]
    fn locks_that_nobody_holds_take_no_memory() {
        let locks = Locks::default();
        let unit = UnitId { inode: InodeId(2), index: 0 };
        let readers = [locks.read(unit).now_or_never(), locks.read(unit).now_or_never()];
        assert!(readers.iter().all(Option::is_some), "readers share");
        let mut waiting = Box::pin(locks.write(unit));
        assert!((&mut waiting).now_or_never().is_none());
        drop(waiting);
        assert!(locks.try_write(unit).is_none());
        drop(readers);
        assert!(locks.is_idle());
        let held = locks.try_write(unit).expect("free again");
        assert!(locks.read(unit).now_or_never().is_none());
        drop(held);
        assert!(locks.is_idle());
    }
}
