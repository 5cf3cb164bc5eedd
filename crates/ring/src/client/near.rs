//! Decides when a program skips polling and leaves its core to a pinned server: after polling in vain several times in a row. Once says
//! little: the thread that serves the request had to be woken, which takes longer than polling does.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of waits without polling after one that polled in vain, so that such a one is a small part of their time.
const WAITS: u32 = 1 << 10;

/// Number of waits in a row that poll in vain before that.
const ATTEMPTS: u32 = 3;

/// Whether waits poll, if there is a pinned server (`server::pinned_server`).
#[derive(Debug, Default)]
pub(super) struct Near {
    /// Remaining waits without polling.
    waits: AtomicU32,
    /// Waits in a row that have polled in vain.
    in_vain: AtomicU32,
}

impl Near {
    /// Returns true if a pinned server is wanted.
    pub(super) fn is_wanted(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }

    /// Counts a wait without polling. Returns true if the next one polls.
    pub(super) fn waits(&self) -> bool {
        // Concurrent waits may be miscounted.
        let left = self.waits.load(Ordering::Relaxed).saturating_sub(1);
        self.waits.store(left, Ordering::Relaxed);
        left == 0
    }

    /// Counts a wait that has polled.
    pub(super) fn polled(&self, in_vain: bool) {
        let count = if in_vain { self.in_vain.load(Ordering::Relaxed) + 1 } else { 0 };
        if count == ATTEMPTS {
            self.waits.store(WAITS, Ordering::Relaxed);
        }
        self.in_vain.store(count % ATTEMPTS, Ordering::Relaxed);
    }
}
