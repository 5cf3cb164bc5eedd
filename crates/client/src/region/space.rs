//! Memory of all regions of a node: a limit, and eviction beyond it.
//!
//! Eviction makes pages absent that have not been fetched recently, in the order of their numbers. A valid page is dropped. A written page
//! is protected again in all processes, its changes are sent to its home, and then it is dropped. The memory of a single process, which
//! changes its protections by itself, is not evicted; nor is memory whose written pages the kernel records, because nothing would keep a
//! process from storing to a page that is being dropped.

use super::memory::{Memory, add_page};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::region::Tracking;
use tameike_core::{Fault, Result};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};

/// Pages that one eviction makes absent.
const EVICTED_MAX: u32 = UNIT_PAGES;
/// Pages that are fetched between two looks at the used memory.
const FETCHED_MAX: u32 = 64;

/// The memory of all regions of a node.
pub(super) struct Space {
    /// Largest number of pages of data and twins.
    limit: u64,
    memories: Mutex<Vec<Weak<Memory>>>,
    /// Pages fetched since the last look.
    fetched: AtomicU32,
    /// Held by an eviction.
    evicting: async_lock::Mutex<()>,
}

/// Pages to evict, in runs that are each of one unit.
#[derive(Default)]
struct Victims {
    valid: Vec<Range<u32>>,
    written: Vec<Range<u32>>,
}

impl Victims {
    fn count(&self) -> u32 {
        self.valid.iter().chain(&self.written).map(|run| run.len() as u32).sum()
    }
}

impl Space {
    /// A limit in bytes.
    pub fn new(limit: u64) -> Self {
        let (memories, fetched, evicting) = Default::default();
        Self { limit: limit / PAGE_SIZE as u64, memories, fetched, evicting }
    }

    /// Adds a memory, until it is dropped.
    pub fn add(&self, memory: &Arc<Memory>) {
        let mut memories = self.memories.lock();
        memories.retain(|memory| memory.strong_count() > 0);
        memories.push(Arc::downgrade(memory));
    }

    /// The used pages, and the memory that uses most of those that can be evicted.
    fn used(&self) -> (u64, Option<Arc<Memory>>) {
        let (mut total, mut largest) = (0, None);
        let memories: Vec<_> = self.memories.lock().iter().filter_map(Weak::upgrade).collect();
        for memory in memories {
            let used = memory.memory.used_pages();
            total += used;
            if memory.tracking == Tracking::Twins && largest.as_ref().is_none_or(|(most, _)| used > *most) {
                largest = Some((used, memory));
            }
        }
        (total, largest.map(|(_, memory)| memory))
    }

    /// Largest number of pages that a sequential reader gets at once.
    pub fn window_max(&self) -> u32 {
        (self.limit / 8).clamp(1, UNIT_PAGES.into()) as u32
    }

    /// Counts fetched pages.
    pub fn add_fetched(&self, pages: u32) {
        self.fetched.fetch_add(pages, Ordering::Relaxed);
    }

    /// Evicts pages if the memory of all regions exceeds the limit, from time to time. Call it before each fetch.
    pub async fn evict_to_limit(&self) {
        let fetched = self.fetched.load(Ordering::Relaxed);
        if fetched < self.window_max().min(FETCHED_MAX) {
            return;
        }
        self.fetched.store(0, Ordering::Relaxed);
        if self.used().0 < self.limit {
            return;
        }
        let _evicting = self.evicting.lock().await;
        loop {
            let (used, largest) = self.used();
            let Some(memory) = largest.filter(|_| used >= self.limit) else { return };
            let wanted = EVICTED_MAX.min((self.limit / 4) as u32).max(1);
            match memory.evict(wanted).await {
                Ok(0) => return,
                Ok(_) => {}
                Err(fault) => {
                    let region = memory.file.inode;
                    return log::warn!("region {region} exceeds the memory limit of regions: {fault}");
                }
            }
        }
    }
}

impl Memory {
    /// Makes about `wanted` pages absent. Returns how many.
    ///
    /// # Errors
    /// Those of a flush; the changes are still here then.
    async fn evict(self: &Arc<Self>, wanted: u32) -> Result<u32> {
        let mut unannounced = self.syncing.lock().await;
        let mut victims = self.choose_victims(wanted, |unit| !self.is_recent(unit));
        if victims.count() == 0 {
            victims = self.choose_victims(wanted, |_| true);
        }
        let Victims { valid, written } = victims;
        let dropped = self.drop_pages(&valid, PageState::Valid)?;
        let closed = self.close(&written, &mut unannounced).await?;
        Ok(dropped + self.drop_pages(&closed, PageState::Claimed)?)
    }

    /// Chooses up to `wanted` pages of some units, from the hand on, in the order of their numbers.
    fn choose_victims(&self, wanted: u32, is_meant: impl Fn(u32) -> bool) -> Victims {
        let control = self.control();
        let mut victims = Victims::default();
        let mut hand = self.hand.lock();
        let first = *hand;
        let units = (first / UNIT_PAGES..control.units()).chain(0..first.div_ceil(UNIT_PAGES));
        for unit in units.filter(|&unit| is_meant(unit)) {
            for page in control.pages_of(unit) {
                match control.load(page).state() {
                    PageState::Valid => add_page(&mut victims.valid, page),
                    PageState::Written => add_page(&mut victims.written, page),
                    PageState::Absent | PageState::Claimed | PageState::Opening => {}
                }
                if victims.count() == wanted {
                    *hand = page + 1;
                    return victims;
                }
            }
        }
        victims
    }

    /// Makes pages absent that are in a state, with their data and twins. Returns how many.
    fn drop_pages(&self, runs: &[Range<u32>], state: PageState) -> Result<u32> {
        let control = self.control();
        // No page becomes valid between the change of its word and the removal of its data.
        let _epoch = self.epoch.write();
        let mut dropped = Vec::new();
        for page in runs.iter().cloned().flatten() {
            let word = control.load(page);
            if word.state() == state && control.replace(page, word, word.dropped()) {
                add_page(&mut dropped, page);
            }
        }
        self.remove(&dropped)?;
        if state == PageState::Claimed {
            for run in &dropped {
                self.memory.punch_twins(run.clone()).map_err(remove_failed)?;
            }
        }
        let count: u32 = dropped.iter().map(|run| run.len() as u32).sum();
        control.count(Counter::PagesEvicted, count.into());
        Ok(count)
    }

    /// Frees the data of dropped pages, and removes them from all mappings. The caller holds the epoch.
    pub(super) fn remove(&self, dropped: &[Range<u32>]) -> Result<()> {
        dropped.iter().try_for_each(|run| self.memory.punch(run.clone()).map_err(remove_failed))
    }
}

fn remove_failed(error: std::io::Error) -> Fault {
    Fault::from_os("removing pages of a region from memory", &error)
}
