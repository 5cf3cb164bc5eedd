//! Control memory of a region: one word per page, one flag per unit, and counters.
//!
//! ```text
//!    0  counters, see [`Counter`]                           u64 each
//! 4096  per unit: nonzero if it may have written pages      u32
//!    .  per page, from the next page on: version (32 bits),
//!       number of the process (16), state (16)              u64
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT};
use tameike_io::os::arena::Arena;

/// Size of a page in bytes.
pub const PAGE_SIZE: usize = BLOCK_SIZE;
/// Pages of a unit.
pub const UNIT_PAGES: u32 = BLOCKS_PER_UNIT as u32;

const UNITS: usize = PAGE_SIZE;
const OWNER_SHIFT: u32 = 16;
const VERSION_SHIFT: u32 = 32;

/// State of a page in the memory of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// The data has a hole, or old bytes that no process can access.
    Absent,
    /// The data has the bytes of the last fetch; processes can only read it.
    Valid,
    /// As valid, while a process makes its twin.
    Claimed,
    /// Processes can write to it, and its twin has the bytes before.
    Written,
    /// As written, while a process removes its protection.
    Opening,
}

impl PageState {
    /// Whether the twin has the bytes before the stores of this node.
    pub fn has_twin(self) -> bool {
        matches!(self, Self::Written | Self::Opening)
    }
}

/// Word of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWord(u64);

impl PageWord {
    /// State of the page. Undefined bits count as absent.
    pub fn state(self) -> PageState {
        match self.0 as u16 {
            1 => PageState::Valid,
            2 => PageState::Claimed,
            3 => PageState::Written,
            4 => PageState::Opening,
            _ => PageState::Absent,
        }
    }

    /// Number of the process that changes the state of a claimed or opening page. Of a written page, the number of flushes in a row that have
    /// found it unchanged.
    pub fn owner(self) -> u16 {
        (self.0 >> OWNER_SHIFT) as u16
    }

    /// The same version in another state.
    #[must_use]
    pub fn with(self, state: PageState, owner: u16) -> Self {
        Self(self.0 >> VERSION_SHIFT << VERSION_SHIFT | u64::from(owner) << OWNER_SHIFT | state as u64)
    }

    /// Absent, with the next version: a compare-and-swap of an earlier word fails from now on.
    #[must_use]
    pub fn dropped(self) -> Self {
        let version = (self.0 >> VERSION_SHIFT) as u32;
        Self(u64::from(version.wrapping_add(1)) << VERSION_SHIFT)
    }
}

/// Counters of a region on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Faults of processes on absent pages.
    ReadFaults,
    /// Faults of processes on pages that they were about to write.
    WriteFaults,
    /// Pages fetched from homes or peers.
    PagesFetched,
    /// Pages whose changes were sent to homes.
    PagesFlushed,
    /// Bytes of changes sent to homes.
    BytesFlushed,
    /// Valid pages that were dropped, because another node had changed them.
    PagesDropped,
    /// Written pages that got changes of other nodes.
    PagesMerged,
    /// Barriers that all processes of the node have called.
    Barriers,
    /// Pages that were removed from memory, because the regions exceeded their limit.
    PagesEvicted,
}

impl Counter {
    /// All counters, in the order of the C structure.
    pub const ALL: [Self; 9] = [
        Self::ReadFaults,
        Self::WriteFaults,
        Self::PagesFetched,
        Self::PagesFlushed,
        Self::BytesFlushed,
        Self::PagesDropped,
        Self::PagesMerged,
        Self::Barriers,
        Self::PagesEvicted,
    ];
}

/// The control memory.
#[derive(Debug)]
pub struct Control {
    arena: Arena,
    pages: u32,
}

/// Offset of the words of pages.
fn words(pages: u32) -> usize {
    (UNITS + pages.div_ceil(UNIT_PAGES) as usize * 4).next_multiple_of(PAGE_SIZE)
}

fn size(pages: u32) -> usize {
    words(pages) + pages as usize * 8
}

impl Control {
    /// Creates the control memory of a region in which all pages are absent, with its descriptor.
    pub fn create(pages: u32) -> std::io::Result<(Self, OwnedFd)> {
        let (arena, memory) = Arena::create("tameike-dsm-control", size(pages))?;
        Ok((Self { arena, pages }, memory))
    }

    /// Maps the control memory of a region of the agent.
    ///
    /// # Errors
    /// Its size differs, or it is not sealed.
    pub fn map(memory: impl AsFd, pages: u32) -> std::io::Result<Self> {
        Ok(Self { arena: Arena::map(memory, size(pages))?, pages })
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    fn word(&self, page: u32) -> &AtomicU64 {
        assert!(page < self.pages, "page {page} is one of {}", self.pages);
        self.arena.long(words(self.pages) + page as usize * 8)
    }

    fn flag(&self, unit: u32) -> &AtomicU32 {
        self.arena.word(UNITS + unit as usize * 4)
    }

    /// The word of a page.
    pub fn load(&self, page: u32) -> PageWord {
        PageWord(self.word(page).load(Ordering::Acquire))
    }

    /// Sets the word of a page that no other thread changes in its state.
    pub fn store(&self, page: u32, word: PageWord) {
        self.word(page).store(word.0, Ordering::Release);
    }

    /// Replaces the word of a page if it is still `before`.
    pub fn replace(&self, page: u32, before: PageWord, after: PageWord) -> bool {
        self.word(page).compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The pages of `range` from its start that are in a state.
    pub fn run(&self, range: Range<u32>, state: PageState) -> Range<u32> {
        let end = range.clone().find(|&page| self.load(page).state() != state).unwrap_or(range.end);
        range.start..end
    }

    /// Notes that a unit may have written pages. Call it before the page's word shows that.
    pub fn note_written(&self, unit: u32) {
        self.flag(unit).store(1, Ordering::Release);
    }

    /// Returns true if a unit may have written pages.
    pub fn may_be_written(&self, unit: u32) -> bool {
        self.flag(unit).load(Ordering::Acquire) != 0
    }

    /// Number of units.
    pub fn units(&self) -> u32 {
        self.pages.div_ceil(UNIT_PAGES)
    }

    /// The pages of a unit.
    pub fn pages_of(&self, unit: u32) -> Range<u32> {
        let first = unit * UNIT_PAGES;
        first..first.saturating_add(UNIT_PAGES).min(self.pages)
    }

    /// Adds to a counter.
    pub fn count(&self, counter: Counter, count: u64) {
        self.arena.long(counter as usize * 8).fetch_add(count, Ordering::Relaxed);
    }

    /// Value of a counter.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.arena.long(counter as usize * 8).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_version_owner_and_state() {
        let (control, memory) = Control::create(300).expect("memory");
        let other = Control::map(&memory, 300).expect("the same memory");
        let absent = control.load(299);
        assert_eq!(absent.state(), PageState::Absent);
        let valid = absent.dropped().with(PageState::Valid, 0);
        control.store(299, valid);
        assert!(!other.replace(299, absent, valid), "another version");
        let claimed = valid.with(PageState::Claimed, 77);
        assert!(other.replace(299, valid, claimed));
        assert_eq!((control.load(299).state(), control.load(299).owner()), (PageState::Claimed, 77));
        assert_eq!(claimed.with(PageState::Valid, 0), valid);
        assert_ne!(claimed.dropped(), valid.dropped().dropped());
        assert_eq!(control.run(299..300, PageState::Claimed), 299..300);
        assert_eq!(control.run(0..300, PageState::Absent), 0..299);
        assert_eq!((control.units(), control.pages_of(1)), (2, 256..300));
        other.note_written(1);
        assert!(control.may_be_written(1) && !control.may_be_written(0));
        assert!(Control::map(&memory, 100_000).is_err(), "a different size");
    }
}
