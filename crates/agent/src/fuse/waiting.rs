//! Writes, and the bytes of those that wait for a frame.
//!
//! The kernel lends a request's bytes only until the thread that has read it reads the next one. A write that
//! must wait takes a copy of them along, and the thread goes on serving the view. The room for copies is a part
//! of the agent's `--memory`; while it is full, the thread waits itself.

use super::tasks::Tasks;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_client::vfs::{HandleNumber, Vfs, WriteAt, WriteBytes};
use tameike_core::Result;

/// Room for the bytes of writes that wait.
#[derive(Clone)]
pub struct WaitingRoom(Arc<AtomicUsize>);

impl WaitingRoom {
    /// Room for `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Bytes of room that are free.
    pub fn free(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Has `vfs` write `data` by a handle: at once and without a copy as far as it can. What then has
    /// to wait does so apart, unless the room is full.
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

    /// A copy of the bytes from `start` on, if there is room.
    fn hold(&self, data: &dyn WriteBytes, start: usize) -> Option<HeldBytes> {
        let take = |free: usize| free.checked_sub(data.size() - start);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(HeldBytes { bytes: data.held(start).into_owned(), room: self.clone() })
    }
}

/// Bytes of a write that waits; their room is free again when they are dropped.
struct HeldBytes {
    bytes: Vec<u8>,
    room: WaitingRoom,
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
        self.room.0.fetch_add(bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_room_comes_back() {
        let room = WaitingRoom::new(10);
        let first = room.hold(b"123456", 0).expect("there is room");
        assert!(room.hold(b"12345", 0).is_none(), "more waits than there is room for");
        let second = room.hold(b"01234", 1).expect("just enough room");
        assert_eq!((&*first, &*second), (&b"123456"[..], &b"1234"[..]));
        drop(first);
        assert!(room.hold(b"1234567", 0).is_none());
        drop(second);
        assert!(room.hold(&[0; 10], 0).is_some());
    }
}
