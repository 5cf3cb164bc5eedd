//! Frames of the data engine: allocates them to units, and reclaims them from units that [`S3FifoQueues`] chooses for eviction.

use super::eviction::{Candidate, Need, S3FifoQueues};
use super::file::FileData;
use super::file::{Evicted, UnitFrame};
use super::file_table::FileTable;
use event_listener::{Event, listener};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tameike_io::{Frame, Pool};

/// Units that are sent early when frames run out.
const SENT_UNDER_PRESSURE: usize = 8;

/// The frames of a view, and the eviction of units from them.
pub(super) struct FrameCache {
    files: Arc<FileTable>,
    pool: Pool,
    /// Lock order: after the lock of a file.
    queues: Mutex<S3FifoQueues>,
    waiting: AtomicU32,
    /// Notified when a unit with a frame may have become clean.
    clean: Event,
}

impl FrameCache {
    pub(super) fn new(pool: Pool, files: Arc<FileTable>) -> Self {
        let queues = Mutex::new(S3FifoQueues::new(pool.share() as usize));
        Self { files, pool, queues, waiting: AtomicU32::new(0), clean: Event::new() }
    }

    /// Adds a unit of `file` that is in memory to an eviction queue, if it is in none.
    pub(super) fn enter(&self, file: &Arc<FileData>, unit: &mut UnitFrame, index: u64) {
        unit.enter_queue(|| self.queues.lock().enter(file, index));
    }

    /// Returns true if tasks wait for frames: then the node keeps no clean bytes.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Wakes the waiters for a frame, since a unit may have become clean.
    pub(super) fn freed(&self) {
        self.clean.notify(usize::MAX);
    }

    pub(super) fn share(&self) -> u32 {
        self.pool.share()
    }

    pub(super) fn try_take(&self) -> Option<Frame> {
        self.pool.try_take()
    }

    /// Returns a frame, evicting a clean unit if necessary. While there is none, it calls `send_dirty` to make units clean.
    pub(super) async fn take(&self, send_dirty: impl Fn()) -> Frame {
        if let Some(frame) = self.take_now() {
            return frame;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.waiting);
        let mut taken = pin!(self.pool.take());
        loop {
            // The task registers before the attempt, so that it does not miss a unit that becomes clean in between.
            listener!(self.clean => clean);
            if let Some(frame) = self.take_now() {
                return frame;
            }
            send_dirty();
            match select(taken, clean).await {
                Either::Left((frame, _)) => return frame,
                Either::Right(((), still)) => taken = still,
            }
        }
    }

    /// Returns a frame, if one is free or clean.
    pub(super) fn take_now(&self) -> Option<Frame> {
        self.take_for(Need::Now)
    }

    pub(super) fn take_ahead(&self) -> Option<Frame> {
        self.take_for(Need::Ahead)
    }

    fn take_for(&self, need: Need) -> Option<Frame> {
        loop {
            let frame = self.try_take();
            // Readers may still hold the evicted unit's frame: then another unit is evicted.
            if frame.is_some() || !self.evict_one(need) {
                return frame;
            }
        }
    }

    fn evict_one(&self, need: Need) -> bool {
        let queues = &self.queues;
        let mut search = queues.lock().begin_search();
        loop {
            let candidate = queues.lock().candidate(need, &mut search);
            let Some(candidate) = candidate else { return false };
            match self.evict(&candidate) {
                Evicted::Now => {
                    queues.lock().evicted(&candidate);
                    return true;
                }
                Evicted::Before => {
                    queues.lock().forget(&candidate);
                }
                // The unit stays in its queue meanwhile, so that concurrent searches find it.
                Evicted::Dirty => queues.lock().requeue(&candidate, &mut search),
            }
        }
    }

    fn evict(&self, candidate: &Candidate) -> Evicted {
        let Some((file, index)) = candidate.entry.unit() else { return Evicted::Before };
        let evicted = file.evict(index, &candidate.entry);
        if matches!(evicted, Evicted::Now) {
            self.files.drop_if_idle(&file);
        }
        evicted
    }

    /// Calls `send` to start sending some of the units that are first for eviction; `send` returns true if it started one.
    pub(super) fn send_first(&self, send: impl Fn(&Arc<FileData>, u64) -> bool) {
        let (mut number, mut sent) = (0, 0);
        while sent < SENT_UNDER_PRESSURE {
            let entry = self.queues.lock().nth(number);
            let Some(entry) = entry else { return };
            number += 1;
            if entry.unit().is_some_and(|(file, unit)| send(&file, unit)) {
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
