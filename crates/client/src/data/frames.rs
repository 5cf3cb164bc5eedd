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

    /// The unit at place `from` in the order of use, or the next one after it.
    fn next_used(&self, from: u64) -> Option<(u64, Weak<FileData>, u64)> {
        let order = self.order.lock();
        let (&used, (file, unit)) = order.range(from..).next()?;
        Some((used, file.clone(), *unit))
    }

    pub(super) fn try_take(&self) -> Option<Frame> {
        self.pool.try_take()
    }
}

impl DataEngine {
    /// A frame, if need be that of the clean unit unused for longest; if all are dirty, some are sent.
    pub(super) async fn take_frame(self: &Arc<Self>) -> Frame {
        if let Some(frame) = self.frame_now() {
            return frame;
        }
        self.frames.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.frames.waiting);
        let mut taken = pin!(self.frames.pool.take());
        loop {
            // Listening starts before looking, so that what becomes clean in between is not missed.
            listener!(self.frames.clean => clean);
            if let Some(frame) = self.frame_now() {
                return frame;
            }
            self.send_oldest();
            match select(taken, clean).await {
                Either::Left((frame, _)) => return frame,
                Either::Right(((), still)) => taken = still,
            }
        }
    }

    /// A frame, if one is free or clean.
    pub fn frame_now(&self) -> Option<Frame> {
        loop {
            let frame = self.frames.try_take();
            // A unit's frame may still be read by others: then one more is dropped.
            if frame.is_some() || !self.evict_one() {
                return frame;
            }
        }
    }

    /// Drops one clean unit; whether there was one.
    fn evict_one(&self) -> bool {
        let mut from = 0;
        while let Some((used, file, unit)) = self.frames.next_used(from) {
            from = used + 1;
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
                state.dropped(unit);
                drop(state);
                self.drop_if_idle(&file);
                return true;
            }
        }
        false
    }

    fn send_oldest(self: &Arc<Self>) {
        let (mut from, mut sent) = (0, 0);
        while sent < SENT_UNDER_PRESSURE
            && let Some((used, file, unit)) = self.frames.next_used(from)
        {
            from = used + 1;
            if file.upgrade().is_some_and(|file| self.send_unit(&file, unit)) {
                sent += 1;
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
