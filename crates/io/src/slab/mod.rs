//! A fixed slab of frames: every buffer for file data is a frame.
//!
//! The slab is mapped once, at start, and never grows, so that an agent's memory stays within its configuration whatever the load
//! is. [`Pool`]s hand out the frames, each with a fixed share: an empty pool makes only its own users wait.

mod map;
mod sums;
#[cfg(test)]
mod tests;

use sums::KeptSums;
pub use sums::{BlockSums, blocks_have_sums};

use async_lock::{Semaphore, SemaphoreGuardArc};
use map::Map;
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};

/// The memory of all frames of an agent.
pub struct Slab {
    map: Map,
    free: Mutex<Vec<u32>>,
    count: u32,
}

impl Slab {
    /// Maps `count` frames of [`UNIT_SIZE`] bytes. The system allocates their memory on first use, except reserved huge pages.
    pub fn new(count: u32) -> std::io::Result<Arc<Self>> {
        let map = Map::new(count as usize * UNIT_SIZE)?;
        Ok(Arc::new(Self { map, free: Mutex::new((0..count).rev().collect()), count }))
    }

    /// The descriptor by which other processes of this host read the frames, in order of their numbers.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.map.memory()
    }

    /// True if the system prevents other processes from writing to the memory.
    pub fn is_sealed(&self) -> bool {
        self.map.is_sealed()
    }

    /// The addresses of the frames, in pieces of `size` bytes and a rest. Only for registration; owners of frames access the
    /// bytes.
    pub(crate) fn pieces(&self, size: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        self.map.pieces(size)
    }

    /// The whole memory, for registration with a network. See [`Self::pieces`].
    pub fn region(&self) -> (NonNull<u8>, usize) {
        self.map.region()
    }

    /// Frames in use, and in total.
    pub fn usage(&self) -> (u32, u32) {
        (self.count - self.free.lock().len() as u32, self.count)
    }

    /// Creates a pool of `share` frames. The shares of all pools together must not exceed the slab.
    pub fn pool(self: &Arc<Self>, share: u32) -> Pool {
        Pool { slab: self.clone(), permits: Arc::new(Semaphore::new(share as usize)), share }
    }
}

/// A fixed share of the slab's frames.
#[derive(Clone)]
pub struct Pool {
    slab: Arc<Slab>,
    permits: Arc<Semaphore>,
    share: u32,
}

impl Pool {
    /// The number of frames in the share.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// Takes a frame, and waits until one is free. Its previous content remains.
    pub async fn take(&self) -> Frame {
        Frame::new(&self.slab, self.permits.acquire_arc().await)
    }

    /// Returns true if a frame is free now.
    pub fn has_free(&self) -> bool {
        self.permits.try_acquire().is_some()
    }

    /// Takes a frame if one is free now.
    pub fn try_take(&self) -> Option<Frame> {
        self.permits.try_acquire_arc().map(|permit| Frame::new(&self.slab, permit))
    }
}

/// A frame with one owner. It returns to its pool on drop.
pub struct Frame {
    index: u32,
    slab: Arc<Slab>,
    _permit: SemaphoreGuardArc,
    /// Known checksums of its blocks, each computed since the last change of the block.
    sums: Mutex<Option<Box<KeptSums>>>,
}

impl Frame {
    fn new(slab: &Arc<Slab>, permit: SemaphoreGuardArc) -> Self {
        let index = slab.free.lock().pop().expect("the shares of all pools fit the slab");
        Self { index, slab: slab.clone(), _permit: permit, sums: Mutex::default() }
    }

    /// Records the checksums of the first `length` bytes as they were received. Each is valid until its block changes.
    pub fn keep_sums(&mut self, length: u32, sums: BlockSums) {
        self.keep_sums_of(0..length, &sums);
    }

    fn keep_sums_of(&self, range: Range<u32>, sums: &BlockSums) {
        if range.start.is_multiple_of(BLOCK_SIZE as u32) {
            self.sums.lock().get_or_insert_with(KeptSums::new).keep(range, sums);
        }
    }

    /// A range of bytes for modification. Other blocks keep their checksums.
    pub fn change(&mut self, range: Range<u32>) -> &mut [u8] {
        if let Some(sums) = self.sums.get_mut() {
            sums.change(&range);
        }
        // SAFETY: a frame is the one owner of its number, and is borrowed exclusively here.
        let bytes = unsafe { self.slab.map.frame_mut(self.index) };
        &mut bytes[range.start as usize..range.end as usize]
    }

    /// Copies bytes of another frame to `at`, with their checksums.
    pub fn copy_from(&mut self, at: u32, payload: &Payload) {
        if let Some(sums) = &payload.sums {
            payload.frame.keep_sums_of(payload.range.clone(), sums);
        }
        self.change(at..at + payload.len() as u32).copy_from_slice(payload);
        if let Some(sums) = &*payload.frame.sums.lock() {
            let kept = self.sums.get_mut().get_or_insert_with(KeptSums::new);
            kept.keep_copied(sums, &payload.range, at);
        }
    }

    /// Moves the bytes `range` to `at`, with their checksums. The rest of the frame becomes undefined.
    pub fn move_within(&mut self, range: Range<u32>, at: u32) {
        let before = self.sums.get_mut().take();
        let all = self.change(0..UNIT_SIZE as u32);
        all.copy_within(range.start as usize..range.end as usize, at as usize);
        *self.sums.get_mut() = before.map(|before| {
            let mut kept = KeptSums::new();
            kept.keep_copied(&before, &range, at);
            kept
        });
    }

    /// The index of the frame in its slab.
    pub fn number(&self) -> u32 {
        self.index
    }

    /// The index in `slab`, by which io_uring knows it; `None` for a frame of another slab.
    pub(crate) fn index_in(&self, slab: &Arc<Slab>) -> Option<u32> {
        Arc::ptr_eq(&self.slab, slab).then_some(self.index)
    }
}

impl Deref for Frame {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slab.map.frame(self.index)
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        *self.sums.get_mut() = None;
        // SAFETY: a frame is the one owner of its number, and is borrowed exclusively here.
        unsafe { self.slab.map.frame_mut(self.index) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.slab.free.lock().push(self.index);
    }
}

/// Immutable bytes of a frame: the payload of a message.
#[derive(Clone)]
pub struct Payload {
    frame: Arc<Frame>,
    range: Range<u32>,
    /// The checksums, if known.
    sums: Option<BlockSums>,
    /// Counts towards a [`Quota`] until the last copy is dropped.
    permit: Option<Arc<SemaphoreGuardArc>>,
}

/// A bound on the concurrent payloads of one kind.
pub struct Quota(Arc<Semaphore>);

impl Quota {
    /// A quota of `count` payloads.
    pub fn new(count: u32) -> Self {
        Self(Arc::new(Semaphore::new(count as usize)))
    }

    /// Counts the payload until it and all its copies are dropped. `None` if the quota is used up.
    pub fn admit(&self, payload: Payload) -> Option<Payload> {
        let permit = self.0.try_acquire_arc()?;
        Some(Payload { permit: Some(Arc::new(permit)), ..payload })
    }
}

impl Payload {
    /// The bytes `range` of the frame, which must lie in it, with the checksums that the frame has.
    pub fn new(frame: Arc<Frame>, range: Range<u32>) -> Self {
        assert!(range.start <= range.end && range.end as usize <= UNIT_SIZE, "a payload lies in its frame");
        Self { frame, range, sums: None, permit: None }
    }

    /// Attaches the checksums of the blocks, as the sender computed them.
    #[must_use]
    pub fn with_sums(self, sums: BlockSums) -> Self {
        Self { sums: Some(sums), ..self }
    }

    /// The checksums of the blocks from the first byte on: the attached ones, or new ones, which the frame keeps.
    pub fn sums(&self) -> BlockSums {
        let kept = || self.frame.sums.lock().as_ref().and_then(|kept| kept.of(&self.range));
        if let Some(known) = self.sums.clone().or_else(kept) {
            return known;
        }
        let sums = BlockSums::of(self);
        self.frame.keep_sums_of(self.range.clone(), &sums);
        sums
    }

    /// True if a byte in the blocks of the payload no longer matches a known checksum.
    pub fn is_damaged(&self) -> bool {
        self.frame.sums.lock().as_ref().is_some_and(|kept| kept.find_damage(&self.frame, &self.range))
    }

    /// A part of these bytes; `range` is relative to the payload.
    #[must_use]
    pub fn slice(&self, range: Range<u32>) -> Self {
        let part =
            Self::new(self.frame.clone(), self.range.start + range.start..self.range.start + range.end);
        let known = self.sums.as_ref().and_then(|sums| sums.of_part(self.len() as u32, range));
        Self { sums: known, permit: self.permit.clone(), ..part }
    }

    /// Returns the frame for modification if this is its only reference.
    pub fn into_frame(self) -> Option<Frame> {
        let Self { frame, range, sums, permit: _ } = self;
        let frame = Arc::into_inner(frame)?;
        if let Some(sums) = sums {
            frame.keep_sums_of(range, &sums);
        }
        Some(frame)
    }

    /// Frame index and offset in `slab`; `None` if the bytes are in another one.
    pub fn place_in(&self, slab: &Arc<Slab>) -> Option<(u32, u32)> {
        self.frame.index_in(slab).map(|index| (index, self.range.start))
    }

    pub(crate) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// The offset of the first byte in the frame.
    pub fn start(&self) -> u32 {
        self.range.start
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.frame[self.range.start as usize..self.range.end as usize]
    }
}
