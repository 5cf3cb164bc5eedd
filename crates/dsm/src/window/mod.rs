//! Memory of a remote memory window on one node, which its agent and its processes share.
//!
//! ```text
//! rank r, from r * stride on:
//!     0  events: rises when a waiter is to be woken        u32
//!     4  number of waiters that sleep, or are about to     u32
//!     8  errno of waits, once a process has failed         u32
//!  4096  the memory of the rank, rounded up to pages
//! ```
//!
//! The layout is the same on every node; only ranks of the node have pages. Processes access the memory of ranks on their node directly,
//! and agents that of ranks on their node for processes of other nodes. Both wake waiters ([`wait`]) after a change. Aligned words of
//! 8 bytes change as a whole.

mod queue;
mod wait;

pub use queue::{Queue, queue_size};
pub use wait::{Comparison, Waiter};

use crate::control::PAGE_SIZE;
use rustix::fs::{FallocateFlags, fallocate};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use tameike_core::Errno;
use tameike_core::wire::window::{Atomic, Elements, RANKS_MAX, Rank, WordChange};
use tameike_io::os::arena::Arena;

/// Result of an access.
pub type Result<T> = std::result::Result<T, Errno>;

/// Largest size of the memory of all ranks together: half of the address space of a process.
const SIZE_MAX: u64 = 1 << 46;

const EVENTS: usize = 0;
const WAITERS: usize = 4;
const BROKEN: usize = 8;

/// Number of ranks, and the size of their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    ranks: u32,
    bytes: u64,
}

impl Shape {
    /// The shape of a window in which each of `ranks` processes has `bytes` bytes.
    ///
    /// # Errors
    /// `EINVAL` without ranks or bytes; `ENOMEM` for more than a process can map.
    pub fn new(ranks: u32, bytes: u64) -> Result<Self> {
        if ranks == 0 || ranks > RANKS_MAX || bytes == 0 {
            return Err(Errno::EINVAL);
        }
        if bytes > SIZE_MAX / u64::from(ranks) - PAGE_SIZE as u64 * 2 {
            return Err(Errno::ENOMEM);
        }
        Ok(Self { ranks, bytes })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Size of the memory of each rank.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rank with a number, as the coordinator knows it.
    pub fn rank(&self, number: u32) -> Rank {
        Rank { number, bytes: self.bytes }
    }

    fn stride(&self) -> usize {
        PAGE_SIZE + (self.bytes as usize).next_multiple_of(PAGE_SIZE)
    }

    fn size(&self) -> usize {
        self.stride() * self.ranks as usize
    }
}

/// The memory of all ranks, as agent or process.
#[derive(Debug)]
pub struct WindowMemory {
    arena: Arena,
    shape: Shape,
}

/// Memory that the system can provide now, in bytes; `None` if that is unknown.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?;
    Some(kib << 10)
}

impl WindowMemory {
    /// Creates memory of zeros, with the descriptor by which processes map it. It takes pages when ranks reserve theirs.
    ///
    /// # Errors
    /// `ENOMEM`, `EMFILE`, `ENFILE`.
    pub fn create(shape: Shape) -> std::io::Result<(Self, OwnedFd)> {
        let (arena, memory) = Arena::create("tameike-window", shape.size())?;
        Ok((Self { arena, shape }, memory))
    }

    /// Maps memory of the agent.
    ///
    /// # Errors
    /// Its size differs, or it is not sealed; `ENOMEM`.
    pub fn map(memory: impl AsFd, shape: Shape) -> std::io::Result<Self> {
        let arena = Arena::map(memory, shape.size())?;
        arena.keep_from_children()?;
        Ok(Self { arena, shape })
    }

    /// Reserves the pages of a rank, so that no access can fail for lack of memory.
    ///
    /// # Errors
    /// `ENOMEM` if the memory is not free; `ENOSPC`; `EINVAL` for another rank.
    pub fn reserve(&self, memory: impl AsFd, rank: u32) -> Result<()> {
        let first = self.part(rank)?;
        let size = self.shape.stride() as u64;
        // The system would rather end processes than refuse.
        if available_memory().is_some_and(|available| size > available) {
            return Err(Errno::ENOMEM);
        }
        loop {
            match fallocate(&memory, FallocateFlags::empty(), first as u64, size) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Errno(error.raw_os_error())),
            }
        }
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Offset of the control page of a rank.
    fn part(&self, rank: u32) -> Result<usize> {
        if rank >= self.shape.ranks {
            return Err(Errno::EINVAL);
        }
        Ok(self.shape.stride() * rank as usize)
    }

    /// Offset in the arena of bytes of a rank.
    fn place(&self, rank: u32, bytes: Range<u64>) -> Result<usize> {
        let first = self.part(rank)? + PAGE_SIZE;
        if bytes.start > bytes.end || bytes.end > self.shape.bytes {
            return Err(Errno::EINVAL);
        }
        Ok(first + bytes.start as usize)
    }

    /// Offset in the arena of `size` bytes of a rank.
    fn place_of(&self, rank: u32, offset: u64, size: usize) -> Result<usize> {
        let end = offset.checked_add(size as u64).ok_or(Errno::EINVAL)?;
        self.place(rank, offset..end)
    }

    /// The word at an offset of a rank, a multiple of 8.
    fn word(&self, rank: u32, offset: u64) -> Result<&AtomicU64> {
        if !offset.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        Ok(self.arena.long(self.place_of(rank, offset, 8)?))
    }

    /// Address of the memory of a rank, for a process that accesses it itself.
    ///
    /// # Errors
    /// `EINVAL` for a rank that does not exist.
    pub fn address(&self, rank: u32) -> Result<usize> {
        Ok(self.arena.start() + self.place(rank, 0..0)?)
    }

    /// Stores bytes, without waking waiters: call [`Self::changed`] afterwards.
    ///
    /// # Errors
    /// `EINVAL` if they are not in the memory of the rank; so for all other accesses.
    pub fn store(&self, rank: u32, offset: u64, from: &[u8]) -> Result<()> {
        self.arena.copy_in_words(self.place_of(rank, offset, from.len())?, from);
        Ok(())
    }

    /// Loads bytes.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn load(&self, rank: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        self.arena.copy_out_words(self.place_of(rank, offset, into.len())?, into);
        Ok(())
    }

    /// Checks that elements are in the memory of a rank, and that they are `size` bytes together.
    fn check(&self, rank: u32, elements: &Elements, size: usize) -> Result<()> {
        let end = elements.end().ok_or(Errno::EINVAL)?;
        self.place(rank, elements.offset..end)?;
        let is_whole = elements.total().is_some_and(|total| total as usize == size);
        if is_whole { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Stores elements, which have no gaps in `from`, without waking waiters.
    ///
    /// # Errors
    /// As [`Self::store`], with nothing stored; `EINVAL` if `from` has another size.
    pub fn store_elements(&self, rank: u32, to: &Elements, from: &[u8]) -> Result<()> {
        self.check(rank, to, from.len())?;
        for (number, element) in (0..).zip(from.chunks(to.size.max(1) as usize)) {
            self.store(rank, to.offset + number * to.stride, element)?;
        }
        Ok(())
    }

    /// Loads elements, without gaps.
    ///
    /// # Errors
    /// As [`Self::store_elements`].
    pub fn load_elements(&self, rank: u32, from: &Elements, into: &mut [u8]) -> Result<()> {
        self.check(rank, from, into.len())?;
        for (number, element) in (0..).zip(into.chunks_mut(from.size.max(1) as usize)) {
            self.load(rank, from.offset + number * from.stride, element)?;
        }
        Ok(())
    }

    /// Checks that a word can be changed.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check_word(&self, rank: u32, offset: u64) -> Result<()> {
        self.word(rank, offset).map(drop)
    }

    /// Changes a word. A process that sees the change sees all stores before it. Does not wake waiters.
    ///
    /// # Errors
    /// As [`Self::store`]; `EINVAL` if the offset is no multiple of 8.
    pub fn change(&self, rank: u32, offset: u64, change: WordChange) -> Result<()> {
        let word = self.word(rank, offset)?;
        match change {
            WordChange::Set(value) => word.store(value, Ordering::Release),
            WordChange::Add(addend) => drop(word.fetch_add(addend, Ordering::AcqRel)),
        }
        Ok(())
    }

    /// Executes an atomic operation, and wakes waiters if it changes the word. Returns the value before.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub fn atomic(&self, rank: u32, offset: u64, operation: Atomic) -> Result<u64> {
        let word = self.word(rank, offset)?;
        let before = match operation {
            Atomic::Fetch => return Ok(word.load(Ordering::Acquire)),
            Atomic::Add(addend) => word.fetch_add(addend, Ordering::AcqRel),
            Atomic::Swap(value) => word.swap(value, Ordering::AcqRel),
            Atomic::CompareSwap { expected, value } => {
                match word.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) => before,
                    Err(other) => return Ok(other),
                }
            }
        };
        self.changed(rank)?;
        Ok(before)
    }

    /// Wakes the waiters of a rank, if there are some, after stores to its memory.
    ///
    /// # Errors
    /// `EINVAL` for a rank that does not exist.
    pub fn changed(&self, rank: u32) -> Result<()> {
        // Either this thread sees the waiter here, or the waiter sees the stores before it sleeps.
        fence(Ordering::SeqCst);
        let part = self.part(rank)?;
        if self.arena.word(part + WAITERS).load(Ordering::Relaxed) != 0 {
            wait::wake(self.arena.word(part + EVENTS));
        }
        Ok(())
    }

    fn waiting_words(&self, rank: u32) -> Result<(&AtomicU32, &AtomicU32)> {
        let part = self.part(rank)?;
        Ok((self.arena.word(part + EVENTS), self.arena.word(part + WAITERS)))
    }

    /// Makes waits in the memory of a rank fail from now on. Only the first error counts.
    ///
    /// # Errors
    /// `EINVAL` for a rank that does not exist.
    pub fn set_broken(&self, rank: u32, error: Errno) -> Result<()> {
        let word = self.arena.word(self.part(rank)? + BROKEN);
        // The word has an earlier error otherwise.
        let _ = word.compare_exchange(0, error.0.cast_unsigned(), Ordering::AcqRel, Ordering::Relaxed);
        self.changed(rank)
    }

    /// The error of waits in the memory of a rank.
    ///
    /// # Errors
    /// That error, or `EINVAL` for a rank that does not exist.
    pub fn check_whole(&self, rank: u32) -> Result<()> {
        match self.arena.word(self.part(rank)? + BROKEN).load(Ordering::Acquire) {
            0 => Ok(()),
            error => Err(Errno(error.cast_signed())),
        }
    }
}

#[cfg(test)]
mod tests;
