//! Memory for messages: slots of frames of the slab, which is what is registered with the network, and what a child of the agent shares with
//! it rather than have it copied.

use std::ptr::NonNull;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::slab::{Frame, Pool};

/// Largest message, in bytes.
pub(crate) const PACKET_MAX: usize = 8 << 10;
/// Slots of one frame.
pub(super) const SLOTS_PER_FRAME: usize = UNIT_SIZE / PACKET_MAX;
/// Frames that all slots take: one for messages that come, one for those that go.
pub const FRAMES: u32 = 2;

/// All slots. Each is the library's, or that of whoever uses it here; the numbers of operations say whose.
pub(super) struct Buffers {
    _frames: Vec<Frame>,
    starts: Vec<NonNull<u8>>,
}

// SAFETY: the memory belongs to no thread, and is in the hands of its one owner.
unsafe impl Send for Buffers {}

impl Buffers {
    /// In frames of a pool, if it has them.
    pub(super) fn new(pool: &Pool) -> Option<Self> {
        let mut frames: Vec<Frame> = (0..FRAMES).map_while(|_| pool.try_take()).collect();
        if frames.len() < FRAMES as usize {
            return None;
        }
        let starts = frames.iter_mut().flat_map(|frame| {
            let slots = frame.chunks_exact_mut(PACKET_MAX);
            slots.map(|slot| NonNull::from(slot).cast::<u8>()).collect::<Vec<_>>()
        });
        Some(Self { starts: starts.collect(), _frames: frames })
    }

    #[cfg(test)]
    pub(super) fn abandon(&mut self) {
        self._frames.drain(..).for_each(std::mem::forget);
    }

    pub(super) fn start(&self, slot: usize) -> NonNull<u8> {
        self.starts[slot]
    }

    /// What has come into a slot that the library has given back.
    pub(super) fn read(&self, slot: usize, length: usize) -> Vec<u8> {
        let length = length.min(PACKET_MAX);
        // SAFETY: the slot is that long, initialised, and nobody writes to it now: its receive has ended.
        unsafe { std::slice::from_raw_parts(self.starts[slot].as_ptr(), length) }.to_vec()
    }

    /// Fills a slot that the library does not have.
    pub(super) fn write(&mut self, slot: usize, packet: &[u8]) {
        assert!(packet.len() <= PACKET_MAX, "a packet fits its slot");
        // SAFETY: the slot is long enough, as just checked, in our hands, and elsewhere than the packet.
        unsafe { self.starts[slot].as_ptr().copy_from_nonoverlapping(packet.as_ptr(), packet.len()) };
    }
}
