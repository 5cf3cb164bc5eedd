//! Decides when a program skips polling and leaves its core to a pinned server: after polling in vain.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of waits without polling after one that polled in vain, so that such a one is a small part of their time.
const WAITS: u32 = 1 << 10;

/// Remaining waits without polling, if there is a pinned server (`server::pinned_server`).
#[derive(Debug, Default)]
pub(super) struct Near(AtomicU32);

impl Near {
    /// Returns true if a pinned server is wanted.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts a wait without polling.
    pub(super) fn waits(&self) {
        // Concurrent waits may be miscounted.
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Polling was in vain.
    pub(super) fn polled_in_vain(&self) {
        self.0.store(WAITS, Ordering::Relaxed);
    }
}
