//! Buffers writes that wait for a frame.
//!
//! The data of a request is valid only until the thread that has read it reads the next one. A write that must wait copies the
//! data into this backlog, a part of the agent's `--memory`, and the thread continues to serve the view. If the backlog is full,
//! the thread waits.

use super::tasks::Tasks;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_client::vfs::{HandleNumber, Vfs, WriteAt, WriteBytes};
use tameike_core::Result;

/// Bounded memory for the data of waiting writes.
#[derive(Clone)]
pub struct WriteBacklog(Arc<AtomicUsize>);

impl WriteBacklog {
    /// Creates a backlog of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Returns the free bytes.
    pub fn free(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Writes `data` through a handle of `vfs`: at once and without a copy as far as possible. The rest waits in the backlog, or
    /// blocks this thread if the backlog is full.
    pub(crate) fn write<V: Vfs>(
        &self,
        tasks: &Tasks,
        vfs: &Arc<V>,
        (handle, at, data): (HandleNumber, WriteAt, &dyn WriteBytes),
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let written = match vfs.write_now(handle, at, data) {
            Ok(written) if written == data.size() => return answer(Ok(())),
            Ok(written) => written,
            Err(fault) => return answer(Err(fault)),
        };
        let at = at.after(written);
        let Some(held) = self.hold(data, written) else {
            let rest = data.held(written);
            return answer(tasks.wait(|| pollster::block_on(vfs.write(handle, at, &rest))));
        };
        let vfs = vfs.clone();
        tasks.spawn(async move {
            let written = vfs.write(handle, at, &held).await;
            drop(held);
            answer(written);
        });
    }

    /// Copies the data from `start` on, if the backlog has space.
    fn hold(&self, data: &dyn WriteBytes, start: usize) -> Option<HeldBytes> {
        let take = |free: usize| free.checked_sub(data.size() - start);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(HeldBytes { bytes: data.held(start).into_owned(), backlog: self.clone() })
    }
}

/// Data of a waiting write. Dropping it frees its space in the backlog.
struct HeldBytes {
    bytes: Vec<u8>,
    backlog: WriteBacklog,
}

impl Deref for HeldBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes).len();
        self.backlog.0.fetch_add(bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_is_bounded_and_dropped_data_frees_space() {
        let backlog = WriteBacklog::new(10);
        let first = backlog.hold(b"123456", 0).expect("space is left");
        assert!(backlog.hold(b"12345", 0).is_none(), "the backlog is full");
        let second = backlog.hold(b"01234", 1).expect("just enough space is left");
        assert_eq!((&*first, &*second), (&b"123456"[..], &b"1234"[..]));
        drop(first);
        assert!(backlog.hold(b"1234567", 0).is_none());
        drop(second);
        assert!(backlog.hold(&[0; 10], 0).is_some());
    }
}
