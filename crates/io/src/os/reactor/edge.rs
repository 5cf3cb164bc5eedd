//! Something that has happened, for one task to wait for.

use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Remembers an edge that came while nobody waited. Whoever waits takes it down before he looks at what has become of
/// it, so that an edge meanwhile is kept. At most one task waits.
#[derive(Default)]
pub struct Edge {
    risen: AtomicBool,
    waiter: AtomicWaker,
}

impl Edge {
    /// Raises the edge and wakes the task that waits.
    pub fn set(&self) {
        self.risen.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// The task that waits says that the last edge was not all.
    pub(super) fn remain(&self) {
        self.risen.store(true, Ordering::Release);
    }

    /// Waits for an edge and takes it down.
    pub async fn take(&self) {
        poll_fn(|context| {
            if self.risen.swap(false, Ordering::AcqRel) {
                return Poll::Ready(());
            }
            self.waiter.register(context.waker());
            if self.risen.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
