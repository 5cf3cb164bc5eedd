//! Memory for messages: slots in frames of the slab. The slab is registered with the network, and a child of the agent shares it
//! instead of copying it.

use std::ptr::NonNull;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::slab::{Frame, Pool};

/// Largest message, in bytes.
pub(crate) const PACKET_MAX: usize = 8 << 10;
pub(super) const SLOTS_PER_FRAME: usize = UNIT_SIZE / PACKET_MAX;
/// Frames that the slots occupy: one for receives, one for sends.
pub const FRAMES: u32 = 2;

/// All slots. The state of the operation with the same number determines whether the library owns a slot.
pub(super) struct Buffers {
    _frames: Vec<Frame>,
    starts: Vec<NonNull<u8>>,
}

// SAFETY: the memory is bound to no thread and has one owner.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Takes the frames from a pool; `None` if it has too few.
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

    /// Copies the message in a slot that the library has returned.
    pub(super) fn read(&self, slot: usize, length: usize) -> Vec<u8> {
        let length = length.min(PACKET_MAX);
        // SAFETY: the slot is that long and initialised, and its receive has ended, so the library does not write to it.
        unsafe { std::slice::from_raw_parts(self.starts[slot].as_ptr(), length) }.to_vec()
    }

    /// Fills a slot that the library does not use.
    pub(super) fn write(&mut self, slot: usize, packet: &[u8]) {
        assert!(packet.len() <= PACKET_MAX, "a packet fits its slot");
        // SAFETY: the slot is long enough, as just checked, not in use by the library, and does not overlap the packet.
        unsafe { self.starts[slot].as_ptr().copy_from_nonoverlapping(packet.as_ptr(), packet.len()) };
    }
}
