//! One file between two doors.

use event_listener::{Event, listener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One open of the kernel, in the word of which the lower half counts requests of the ring.
const KERNEL: u64 = 1 << 32;

/// What every request of the ring on a file passes.
#[derive(Default)]
pub(crate) struct Gate {
    /// Opens of the kernel, and requests of the ring in flight.
    word: AtomicU64,
    /// Opens of the ring.
    handles: AtomicU32,
    /// When the ring has last written since the kernel opened the file, in nanoseconds; 0 when it has not.
    written: AtomicU64,
    /// Whether a write may have to take away rights that the file gives to who runs it.
    gives_rights: AtomicBool,
    /// Notified when no request is in flight.
    over: Event,
}

/// A request of the ring in flight, until dropped.
pub(crate) struct InFlight(Arc<Gate>);

impl Gate {
    /// Begins a request of the ring; none while the kernel has the file.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        let word = self.word.fetch_add(1, Ordering::AcqRel);
        let in_flight = InFlight(self.clone());
        (word < KERNEL).then_some(in_flight)
    }

    /// Whether a write may have to take away rights that the file gives to who runs it.
    pub(crate) fn gives_rights(&self) -> bool {
        self.gives_rights.load(Ordering::Acquire)
    }

    pub(super) fn set_gives_rights(&self, gives: bool) {
        self.gives_rights.store(gives, Ordering::Release);
    }

    pub(super) fn is_kernels(&self) -> bool {
        self.word.load(Ordering::Acquire) >= KERNEL
    }

    /// Whether no door has the file.
    pub(super) fn is_idle(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0 && self.handles.load(Ordering::Acquire) == 0
    }

    pub(super) fn kernel_opens(&self) {
        self.word.fetch_add(KERNEL, Ordering::AcqRel);
    }

    pub(super) fn kernel_closes(&self) {
        let less = |word: u64| word.checked_sub(KERNEL);
        // One that was never told of changes nothing.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    pub(super) fn ring_opens(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn ring_closes(&self) {
        self.handles.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until no request is in flight; those that begin while the kernel has the file are declined.
    pub(super) async fn until_over(&self) {
        loop {
            listener!(self.over => over);
            if self.word.load(Ordering::Acquire).is_multiple_of(KERNEL) {
                return;
            }
            over.await;
        }
    }

    /// The ring is about to write.
    pub(super) fn writes(&self, now: Duration) {
        self.written.store((now.as_nanos() as u64).max(1), Ordering::Release);
    }

    /// When the ring has last written since the kernel opened the file.
    pub(super) fn written(&self) -> Option<Duration> {
        let time = self.written.load(Ordering::Acquire);
        (time > 0).then_some(Duration::from_nanos(time))
    }

    /// The kernel has no attributes that are older than what was written until then.
    pub(super) fn is_true_again(&self, written: Option<Duration>) {
        let written = written.map_or(0, |time| time.as_nanos() as u64);
        // If it was written to since, the next open looks again.
        let _ = self.written.compare_exchange(written, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.word.fetch_sub(1, Ordering::AcqRel) % KERNEL == 1 {
            self.0.over.notify(usize::MAX);
        }
    }
}
