//! The engine's frames: lent to units, taken back in order of use.

use super::{DataEngine, FileData};
use event_listener::{Event, listener};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tameike_io::{Frame, Pool};

/// Units sent early when frames run out.
const SENT_UNDER_PRESSURE: usize = 8;

pub(super) struct FrameCache {
    pool: Pool,
    clock: AtomicU64,
    /// Units with a frame by last use.
    order: Mutex<BTreeMap<u64, (Weak<FileData>, u64)>>,
    waiting: AtomicU32,
    /// Notified when a unit with a frame may have become clean.
    clean: Event,
}

impl FrameCache {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            clock: AtomicU64::new(1),
            order: Mutex::default(),
            waiting: AtomicU32::new(0),
            clean: Event::new(),
        }
    }

    /// A place at the end of the order of use.
    pub(super) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Moves a unit from place `old` to place `new`.
    pub(super) fn touch(&self, file: &Arc<FileData>, unit: u64, old: Option<u64>, new: u64) {
        let mut order = self.order.lock();
        if let Some(old) = old {
            order.remove(&old);
        }
        order.insert(new, (Arc::downgrade(file), unit));
    }

    /// Whether frames are wanted: then nothing clean is kept.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// A unit may have become clean: who waits for a frame looks again.
    pub(super) fn freed(&self) {
        self.clean.notify(usize::MAX);
    }

    pub(super) fn try_take(&self) -> Option<Frame> {
        self.pool.try_take()
    }
}

impl DataEngine {
    /// A frame, if need be that of the clean unit unused for longest; if all are dirty, some are sent.
    pub(super) async fn take_frame(self: &Arc<Self>) -> Frame {
        if let Some(frame) = self.frames.try_take() {
            return frame;
        }
        self.frames.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.frames.waiting);
        let mut taken = pin!(self.frames.pool.take());
        loop {
            // Listening starts before looking, so that what becomes clean in between is not missed.
            listener!(self.frames.clean => clean);
            // A unit's frame may still be read by others: then one more is dropped.
            while self.evict_one() {
                if let Some(frame) = self.frames.try_take() {
                    return frame;
                }
            }
            self.send_oldest();
            match select(taken, clean).await {
                Either::Left((frame, _)) => return frame,
                Either::Right(((), still)) => taken = still,
            }
        }
    }

    /// Drops one clean unit; whether there was one.
    fn evict_one(&self) -> bool {
        let candidates: Vec<_> = self
            .frames
            .order
            .lock()
            .iter()
            .map(|(&used, (file, unit))| (used, file.clone(), *unit))
            .collect();
        for (used, file, unit) in candidates {
            let Some(file) = file.upgrade() else {
                self.frames.order.lock().remove(&used);
                continue;
            };
            let mut state = file.state.lock();
            let current = state.units.get(&unit).filter(|held| held.used == used).map(|held| held.is_clean());
            if current != Some(false) {
                self.frames.order.lock().remove(&used);
            }
            if current == Some(true) {
                state.units.remove(&unit);
                drop(state);
                self.drop_if_idle(&file);
                return true;
            }
        }
        false
    }

    fn send_oldest(self: &Arc<Self>) {
        let oldest: Vec<_> = self.frames.order.lock().values().cloned().collect();
        let dirty = oldest.into_iter().filter_map(|(file, unit)| Some((file.upgrade()?, unit)));
        let mut sent = 0;
        for (file, unit) in dirty {
            if self.send_unit(&file, unit) {
                sent += 1;
            }
            if sent == SENT_UNDER_PRESSURE {
                return;
            }
        }
    }
}

/// Counts one waiter, also when its task is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
