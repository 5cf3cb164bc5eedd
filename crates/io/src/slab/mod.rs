//! One fixed slab of frames: every buffer for file data is a frame (BB-7).
//!
//! The slab is mapped once, at start, and never grows, so that an agent's memory stays within its
//! configuration however much data moves. Frames are lent through [`Pool`]s with a fixed share each: a pool
//! that runs dry makes its own users wait and nobody else.

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
    /// Maps `count` frames of [`UNIT_SIZE`] bytes. Memory is taken from the system as frames are first used.
    ///
    /// # Errors
    /// When the system refuses the mapping.
    pub fn new(count: u32) -> std::io::Result<Arc<Self>> {
        let map = Map::new(count as usize * UNIT_SIZE)?;
        Ok(Arc::new(Self { map, free: Mutex::new((0..count).rev().collect()), count }))
    }

    /// Where others of this host read what lies in its frames, which follow one another.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.map.memory()
    }

    /// Whether the system keeps all others from writing there.
    pub fn is_sealed(&self) -> bool {
        self.map.is_sealed()
    }

    /// Where the frames lie, in pieces of `size` bytes and a rest. Only for the kernel to look up their pages: the bytes
    /// are the frames' owners'.
    pub(crate) fn pieces(&self, size: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        self.map.pieces(size)
    }

    /// All of it, for a network to register. As of [`Self::pieces`].
    pub fn region(&self) -> (NonNull<u8>, usize) {
        self.map.region()
    }

    /// Frames in use and in all.
    pub fn usage(&self) -> (u32, u32) {
        (self.count - self.free.lock().len() as u32, self.count)
    }

    /// Sets `share` frames aside for one use. The shares of all pools together must not exceed the slab.
    pub fn pool(self: &Arc<Self>, share: u32) -> Pool {
        Pool { slab: self.clone(), permits: Arc::new(Semaphore::new(share as usize)), share }
    }
}

/// A share of the slab.
#[derive(Clone)]
pub struct Pool {
    slab: Arc<Slab>,
    permits: Arc<Semaphore>,
    share: u32,
}

impl Pool {
    /// Number of frames of the share.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// Takes a frame, waiting until one is free. Its content is whatever it held last.
    pub async fn take(&self) -> Frame {
        Frame::new(&self.slab, self.permits.acquire_arc().await)
    }

    /// Takes a frame if one is free now.
    pub fn try_take(&self) -> Option<Frame> {
        self.permits.try_acquire_arc().map(|permit| Frame::new(&self.slab, permit))
    }
}

/// A frame in one owner's hands; it goes back to its pool when dropped.
pub struct Frame {
    index: u32,
    slab: Arc<Slab>,
    _permit: SemaphoreGuardArc,
    /// Checksums of its blocks, where somebody has gone through them since they were changed last.
    sums: Mutex<Option<Box<KeptSums>>>,
}

impl Frame {
    fn new(slab: &Arc<Slab>, permit: SemaphoreGuardArc) -> Self {
        let index = slab.free.lock().pop().expect("the shares of all pools fit the slab");
        Self { index, slab: slab.clone(), _permit: permit, sums: Mutex::default() }
    }

    /// Keeps the checksums of the first `length` bytes, as they were when these came here, each until a byte of its block is changed.
    pub fn keep_sums(&mut self, length: u32, sums: BlockSums) {
        self.keep_sums_of(0..length, &sums);
    }

    fn keep_sums_of(&self, range: Range<u32>, sums: &BlockSums) {
        if range.start.is_multiple_of(BLOCK_SIZE as u32) {
            self.sums.lock().get_or_insert_with(KeptSums::new).keep(range, sums);
        }
    }

    /// These bytes, to change them. Other blocks keep their checksums.
    pub fn change(&mut self, range: Range<u32>) -> &mut [u8] {
        if let Some(sums) = self.sums.get_mut() {
            sums.change(&range);
        }
        // SAFETY: a frame is the one owner of its number, and is borrowed exclusively here.
        let bytes = unsafe { self.slab.map.frame_mut(self.index) };
        &mut bytes[range.start as usize..range.end as usize]
    }

    /// Puts bytes of another frame at `at`, with the checksums that they have there.
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

    /// Moves the bytes `range` to `at`, with their checksums; what is elsewhere is of no use any more.
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

    /// Its place in its slab.
    pub fn number(&self) -> u32 {
        self.index
    }

    /// Its number in `slab`, by which io_uring knows it; none when it is of another one.
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

/// Bytes of a frame that nobody changes any more: what travels beside a message.
#[derive(Clone)]
pub struct Payload {
    frame: Arc<Frame>,
    range: Range<u32>,
    /// Where they are known already.
    sums: Option<BlockSums>,
    /// Of a [`Quota`], until the last copy is gone.
    permit: Option<Arc<SemaphoreGuardArc>>,
}

/// How many payloads of one kind there may be at the same time.
pub struct Quota(Arc<Semaphore>);

impl Quota {
    /// For so many.
    pub fn new(count: u32) -> Self {
        Self(Arc::new(Semaphore::new(count as usize)))
    }

    /// The payload as one of them until it and all its copies are gone, if there are not as many already.
    pub fn admit(&self, payload: Payload) -> Option<Payload> {
        let permit = self.0.try_acquire_arc()?;
        Some(Payload { permit: Some(Arc::new(permit)), ..payload })
    }
}

impl Payload {
    /// The bytes `range` of the frame, with the checksums that it keeps. `range` must lie in the frame.
    pub fn new(frame: Arc<Frame>, range: Range<u32>) -> Self {
        assert!(range.start <= range.end && range.end as usize <= UNIT_SIZE, "a payload lies in its frame");
        Self { frame, range, sums: None, permit: None }
    }

    /// The same with the checksums of its blocks, as they were when the bytes were last looked at.
    #[must_use]
    pub fn with_sums(self, sums: BlockSums) -> Self {
        Self { sums: Some(sums), ..self }
    }

    /// The checksums of its blocks, which begin at its first byte: those that it came with, or new ones, which stay with the frame.
    pub fn sums(&self) -> BlockSums {
        let kept = || self.frame.sums.lock().as_ref().and_then(|kept| kept.of(&self.range));
        if let Some(known) = self.sums.clone().or_else(kept) {
            return known;
        }
        let sums = BlockSums::of(self);
        self.frame.keep_sums_of(self.range.clone(), &sums);
        sums
    }

    /// Whether any byte of the blocks around it has changed by itself: as far as their checksums are known.
    pub fn is_damaged(&self) -> bool {
        self.frame.sums.lock().as_ref().is_some_and(|kept| kept.find_damage(&self.frame, &self.range))
    }

    /// A part of these bytes; `range` counts from the payload's first byte.
    #[must_use]
    pub fn slice(&self, range: Range<u32>) -> Self {
        let part =
            Self::new(self.frame.clone(), self.range.start + range.start..self.range.start + range.end);
        let known = self.sums.as_ref().and_then(|sums| sums.of_part(self.len() as u32, range));
        Self { sums: known, permit: self.permit.clone(), ..part }
    }

    /// Gives the frame back to change it, if nobody else holds it.
    pub fn into_frame(self) -> Option<Frame> {
        let Self { frame, range, sums, permit: _ } = self;
        let frame = Arc::into_inner(frame)?;
        if let Some(sums) = sums {
            frame.keep_sums_of(range, &sums);
        }
        Some(frame)
    }

    /// Frame and place of the first byte in `slab`; none when the bytes are in another one.
    pub fn place_in(&self, slab: &Arc<Slab>) -> Option<(u32, u32)> {
        self.frame.index_in(slab).map(|index| (index, self.range.start))
    }

    /// Place in the frame.
    pub(crate) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Place of the first byte in the frame.
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
