//! The queue of files to flush in the background, with the time of each next attempt.

use event_listener::{Event, EventListener};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{InodeId, Result};
use tameike_io::Runtime;

/// Pause before the next attempt on a file whose flush gave way to foreground requests.
const GAVE_WAY_PAUSE: Duration = Duration::from_millis(100);
/// Pauses before the next attempt on a file whose flush failed: they double from the first to the last.
const FAILED_PAUSE_MIN: Duration = Duration::from_secs(1);
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Default)]
struct Wait {
    /// No attempt before this time of the monotonic clock.
    until: Duration,
    /// Attempts that failed in a row.
    failures: u32,
}

/// The next work of the background flush.
pub(super) enum Next {
    Nothing,
    In(Duration),
    Now(Vec<InodeId>),
}

/// The dirty files of a coordinator. A file is in the queue from before its first dirty byte until a flush has found it clean. Callers
/// that hold the state of a file may call the queue, which calls nothing back.
pub(super) struct DirtyQueue {
    runtime: Runtime,
    waits: Mutex<BTreeMap<InodeId, Wait>>,
    changed: Arc<Event>,
}

impl DirtyQueue {
    pub(super) fn new(runtime: Runtime) -> Self {
        Self { runtime, waits: Mutex::default(), changed: Arc::default() }
    }

    /// Removes files that another node coordinates now.
    pub(super) fn forget(&self, is_left: impl Fn(InodeId) -> bool) {
        self.waits.lock().retain(|inode, _| !is_left(*inode));
    }

    /// Adds a file, to be flushed at once.
    pub(super) fn add(&self, inode: InodeId) {
        let is_new = self.waits.lock().insert(inode, Wait::default()).is_none();
        if is_new {
            self.wake();
        }
    }

    /// Adds a file unless it is queued already.
    pub(super) fn add_if_absent(&self, inode: InodeId) {
        self.waits.lock().entry(inode).or_default();
    }

    /// Removes a clean file.
    pub(super) fn remove(&self, inode: InodeId) {
        self.waits.lock().remove(&inode);
    }

    /// The count of queued files.
    pub(super) fn len(&self) -> usize {
        self.waits.lock().len()
    }

    /// Wakes the listeners.
    pub(super) fn wake(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Listens for new files, for the caller to wait without the queue.
    pub(super) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// The files whose time has come, at most `batch` of them; or how long until the first.
    pub(super) fn next(&self, batch: usize) -> Next {
        let now = self.runtime.clock.monotonic();
        let waits = self.waits.lock();
        let due: Vec<_> =
            waits.iter().filter(|(_, wait)| wait.until <= now).map(|(&id, _)| id).take(batch).collect();
        match waits.values().map(|wait| wait.until).min() {
            None => Next::Nothing,
            Some(_) if !due.is_empty() => Next::Now(due),
            Some(until) => Next::In(until.saturating_sub(now)),
        }
    }

    /// Sets the time of the next attempt on a file that is still dirty after this one.
    pub(super) fn postpone(&self, inode: InodeId, outcome: Result<bool>) {
        let now = self.runtime.clock.monotonic();
        let mut waits = self.waits.lock();
        let Some(wait) = waits.get_mut(&inode) else { return };
        match outcome {
            Ok(_) => wait.until = now + GAVE_WAY_PAUSE,
            Err(fault) => {
                let pause = FAILED_PAUSE_MIN * 2_u32.pow(wait.failures.min(6));
                wait.until = now + pause.min(FAILED_PAUSE_MAX);
                if wait.failures == 0 {
                    log::warn!("cannot flush {inode} yet: {fault}");
                }
                wait.failures += 1;
            }
        }
    }
}
