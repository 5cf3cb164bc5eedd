//! The state of one program's pinned server: whether the program has one, whether that is to end, and whether it has ended.

use crate::layout::{ENDS, near};
use parking_lot::{Condvar, Mutex};
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_io::os::arena::Arena;

/// State of a connection's pinned server.
#[derive(Default)]
pub(super) struct PinnedState {
    /// The program has or had one.
    claimed: AtomicBool,
    /// It must end.
    ending: AtomicBool,
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl PinnedState {
    /// Takes the right to start the one pinned server of the program; false if it was taken before.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.load(Ordering::Relaxed) && !self.claimed.swap(true, Ordering::Relaxed)
    }

    /// Returns true if the server must end.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Makes the server end, and wakes it.
    pub(super) fn end(&self, arena: &Arena) {
        self.ending.store(true, Ordering::SeqCst);
        near(arena).fetch_or(ENDS, Ordering::SeqCst);
        let _ = futex::wake(near(arena), futex::Flags::empty(), 1);
    }

    /// The server has ended.
    pub(super) fn ended(&self) {
        *self.has_ended.lock() = true;
        self.ended.notify_all();
    }

    /// Waits for the end of the server; returns false if the limit has passed without it.
    pub(super) fn wait_ended(&self, limit: Duration) -> bool {
        let mut has_ended = self.has_ended.lock();
        *has_ended || !self.ended.wait_for(&mut has_ended, limit).timed_out()
    }
}
