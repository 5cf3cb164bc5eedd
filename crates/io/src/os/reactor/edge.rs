//! An edge-triggered event for one waiting task.

use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Remembers an event that occurred while no task waited. The waiter clears it before it checks for the cause, so that an event
/// meanwhile is kept. At most one task waits.
#[derive(Default)]
pub struct Edge {
    is_set: AtomicBool,
    waiter: AtomicWaker,
}

impl Edge {
    /// Sets the event and wakes the waiting task.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// Called by the waiting task if there may be more to do.
    pub(super) fn remain(&self) {
        self.is_set.store(true, Ordering::Release);
    }

    /// Waits for the event and clears it.
    pub async fn take(&self) {
        poll_fn(|context| {
            if self.is_set.swap(false, Ordering::AcqRel) {
                return Poll::Ready(());
            }
            self.waiter.register(context.waker());
            if self.is_set.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
