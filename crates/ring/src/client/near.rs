//! When to sleep at once and leave the core to the agent: where looking for an answer was in vain.

use std::sync::atomic::{AtomicU32, Ordering};

/// Waits without looking after one that looked in vain, so that such a one is a small part of their time.
const WAITS: u32 = 1 << 10;

/// Waits yet in which the program does not look, if it has a pinned server (`server::pinned_server`).
#[derive(Debug, Default)]
pub(super) struct Near(AtomicU32);

impl Near {
    /// Whether a pinned server is wanted.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A wait without looking begins.
    pub(super) fn waits(&self) {
        // Of several threads at once, one may not be counted.
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Looking for an answer was in vain.
    pub(super) fn disappointed(&self) {
        self.0.store(WAITS, Ordering::Relaxed);
    }
}
