//! The state of one file between kernel and ring.

use event_listener::{Event, listener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One open of the kernel in [`Gate::word`]; the lower half counts ring requests.
const KERNEL: u64 = 1 << 32;

/// Gate of a file, which every ring request on the file passes.
#[derive(Default)]
pub(crate) struct Gate {
    /// Opens of the kernel, and ring requests in flight.
    word: AtomicU64,
    handles: AtomicU32,
    /// Time of the last ring write since the kernel opened the file, in nanoseconds; 0 if there is none.
    written: AtomicU64,
    /// A write may have to clear set-ID bits of the file.
    has_setid: AtomicBool,
    /// Notified when no ring request is in flight.
    over: Event,
}

/// A ring request in flight, until dropped.
pub(crate) struct InFlight(Arc<Gate>);

impl Gate {
    /// Begins a ring request. Returns `None` while the kernel has the file open.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        let word = self.word.fetch_add(1, Ordering::AcqRel);
        let in_flight = InFlight(self.clone());
        (word < KERNEL).then_some(in_flight)
    }

    pub(crate) fn has_setid(&self) -> bool {
        self.has_setid.load(Ordering::Acquire)
    }

    pub(super) fn set_has_setid(&self, has_setid: bool) {
        self.has_setid.store(has_setid, Ordering::Release);
    }

    pub(super) fn is_open_in_kernel(&self) -> bool {
        self.word.load(Ordering::Acquire) >= KERNEL
    }

    pub(super) fn is_idle(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0 && self.handles.load(Ordering::Acquire) == 0
    }

    pub(super) fn kernel_opens(&self) {
        self.word.fetch_add(KERNEL, Ordering::AcqRel);
    }

    pub(super) fn kernel_closes(&self) {
        let less = |word: u64| word.checked_sub(KERNEL);
        // A close without an open changes nothing.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    pub(super) fn ring_opens(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn ring_closes(&self) {
        self.handles.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until no request is in flight. Call it while the kernel has the file, so that new requests are declined.
    pub(super) async fn until_idle(&self) {
        loop {
            listener!(self.over => over);
            if self.word.load(Ordering::Acquire).is_multiple_of(KERNEL) {
                return;
            }
            over.await;
        }
    }

    pub(super) fn writes(&self, now: Duration) {
        self.written.store((now.as_nanos() as u64).max(1), Ordering::Release);
    }

    pub(super) fn written(&self) -> Option<Duration> {
        let time = self.written.load(Ordering::Acquire);
        (time > 0).then_some(Duration::from_nanos(time))
    }

    /// Records that the kernel has no attributes older than the write at `written`.
    pub(super) fn clear_written(&self, written: Option<Duration>) {
        let written = written.map_or(0, |time| time.as_nanos() as u64);
        // After a newer write, the next open invalidates again.
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
