//! How a program waits for the replies to one kind of request.
//!
//! It polls. After polling in vain several times in a row, it leaves its core to a pinned server (`server::pinned_server`) for many waits. Once
//! says little: the thread that serves the request had to be woken, which takes longer than polling does.

use crate::spin::{Spin, Wait};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum polling time before a sleep.
const SPIN: Duration = Duration::from_micros(50);
/// Number of waits in a row that poll in vain before others do not poll.
const ATTEMPTS: u32 = 3;
/// Number of waits without polling after that, so that those in vain are a small part of their time.
const WAITS: u32 = 1 << 10;

/// State of the waits for one kind of request, which take about as long as each other.
#[derive(Debug)]
pub(super) struct Pace {
    spin: Spin,
    /// Waits in a row that have polled in vain.
    in_vain: AtomicU32,
    /// Remaining waits without polling, if there is a pinned server.
    waits: AtomicU32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { spin: Spin::of_program(SPIN), in_vain: AtomicU32::new(0), waits: AtomicU32::new(0) }
    }

    /// Returns true if a pinned server is wanted.
    pub(super) fn is_near(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }

    /// Counts a wait without polling.
    pub(super) fn waits_near(&self) {
        // Concurrent waits may be miscounted.
        let left = self.waits.load(Ordering::Relaxed).saturating_sub(1);
        self.waits.store(left, Ordering::Relaxed);
        if left == 0 {
            self.spin.restore();
        }
    }

    /// Polls until `is_there`, for the current polling time. If it is in vain, the caller sleeps and then calls [`Self::slept`].
    pub(super) fn poll(&self, is_there: impl Fn() -> bool) -> Result<(), Wait> {
        let polled = self.spin.poll(is_there);
        let in_vain = if polled.is_err() { self.in_vain.load(Ordering::Relaxed) + 1 } else { 0 };
        if in_vain == ATTEMPTS {
            self.waits.store(WAITS, Ordering::Relaxed);
        }
        self.in_vain.store(in_vain % ATTEMPTS, Ordering::Relaxed);
        polled
    }

    /// Ends a wait that slept.
    pub(super) fn slept(&self, wait: &Wait) {
        self.spin.slept(wait);
    }
}
