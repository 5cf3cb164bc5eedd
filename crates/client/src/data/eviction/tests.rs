use super::super::Home;
use super::*;
use tameike_core::{Layout, MapEpoch};

/// The eviction queues, with the units of `file` that are in memory and their entries.
struct Memory {
    queues: S3FifoQueues,
    file: Arc<FileData>,
    held: Vec<Arc<QueueEntry>>,
}

impl Memory {
    /// Memory for 20 units, with these units in use.
    fn with(units: std::ops::Range<u64>) -> Self {
        let file = Arc::new(FileData::new(InodeId(7), Layout::Striped, Home::Inode, MapEpoch(1)));
        let mut memory = Self { queues: S3FifoQueues::new(20), file, held: Vec::new() };
        units.for_each(|unit| drop(memory.enter(unit, true)));
        memory
    }

    /// Adds a unit. A program uses it unless it is read ahead.
    fn enter(&mut self, unit: u64, is_accessed: bool) -> Arc<QueueEntry> {
        let entry = self.queues.enter(&self.file, unit);
        self.held.push(entry.clone());
        if is_accessed {
            entry.mark_accessed();
        }
        entry
    }

    /// Evicts a unit, if there is a clean one.
    fn evict(&mut self, need: Need, is_clean: impl Fn(u64) -> bool) -> Option<u64> {
        let mut search = self.queues.begin_search();
        while let Some(candidate) = self.queues.candidate(need, &mut search) {
            let unit = candidate.entry.name().1;
            if is_clean(unit) {
                self.held.retain(|entry| !Arc::ptr_eq(entry, &candidate.entry));
                self.queues.evicted(&candidate);
                return Some(unit);
            }
            self.queues.requeue(&candidate, &mut search);
        }
        None
    }

    fn evict_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.evict(Need::Now, |_| true)).collect()
    }

    /// Adds these units, evicting one unit for each; returns the evicted ones.
    fn scan(&mut self, units: std::ops::Range<u64>) -> Vec<u64> {
        let mut evicted = Vec::new();
        for unit in units {
            evicted.extend(self.evict(Need::Now, |_| true));
            self.enter(unit, true);
        }
        evicted
    }
}

#[test]
fn reused_units_stay_during_a_scan() {
    let mut memory = Memory::with(0..20);
    [2, 5].iter().for_each(|&unit: &usize| memory.held[unit].used());
    let evicted = memory.scan(20..200);
    assert!(evicted.len() == 180 && !evicted.contains(&2) && !evicted.contains(&5), "{evicted:?}");
}

#[test]
fn a_unit_that_soon_returns_counts_as_reused() {
    let mut memory = Memory::with(0..20);
    assert_eq!(memory.scan(20..25), [0, 1, 2, 3, 4]);
    memory.evict(Need::Now, |_| true);
    memory.enter(3, true);
    let evicted = memory.scan(25..200);
    assert!(evicted.len() == 175 && !evicted.contains(&3), "{evicted:?}");
}

#[test]
fn a_last_copy_passes_its_queue_once_more() {
    let mut memory = Memory::with(0..6);
    [3, 4].iter().for_each(|&unit: &usize| memory.held[unit].set_elsewhere(true));
    assert_eq!(memory.evict_all(), [3, 4, 0, 1, 2, 5]);
    let mut memory = Memory::with(0..3);
    [1, 2].iter().for_each(|&unit: &usize| memory.held[unit].set_elsewhere(true));
    assert_eq!(memory.evict_all(), [1, 2, 0]);
}

#[test]
fn unread_readahead_is_not_evicted_for_more_readahead() {
    let mut memory = Memory::with(0..0);
    memory.enter(0, false);
    memory.enter(1, true);
    memory.enter(2, false);
    let ahead = |memory: &mut Memory| memory.evict(Need::Ahead, |_| true);
    assert_eq!((ahead(&mut memory), ahead(&mut memory)), (Some(1), None));
    let mut evicted = memory.evict_all();
    evicted.sort_unstable();
    assert_eq!(evicted, [0, 2]);
}

#[test]
fn units_that_cannot_be_evicted_are_examined_once() {
    let mut memory = Memory::with(0..9);
    [1, 8].iter().for_each(|&unit: &usize| memory.held[unit].used());
    assert_eq!(memory.evict(Need::Now, |_| false), None);
    assert_eq!(memory.evict(Need::Now, |unit| unit == 8), Some(8));
    let mut evicted = memory.evict_all();
    evicted.sort_unstable();
    assert_eq!(evicted, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Units left memory without an eviction, as other nodes changed the file repeatedly; the queue once grew with each.
#[test]
fn the_queues_do_not_grow_with_invalidated_units() {
    let mut memory = Memory::with(0..0);
    for round in 0..1000 {
        memory.enter(round, true);
        if round % 3 > 0 {
            memory.held.pop();
        }
        if memory.held.len() == 20 {
            memory.evict(Need::Now, |_| true).expect("a clean unit");
        }
        let S3FifoQueues { small, main, ghost, .. } = &memory.queues;
        assert!(
            small.len() + main.len() <= 2 * 20 + 20 + 1 && ghost.order.len() <= 20 && ghost.names.len() <= 20
        );
    }
    let evicted = memory.evict_all();
    assert!(evicted.len() < 20 && evicted.iter().all(|unit| unit % 3 == 0), "{evicted:?}");
}
