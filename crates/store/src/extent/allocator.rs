//! Best-fit allocator of free blocks on the device.
//!
//! Free blocks are *warm* if the extents file is known to have space allocated for them, or *cold* if it has none. The
//! allocator prefers warm ones. Memory: about 100 bytes per run of free blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs of free blocks; adjacent runs are merged.
#[derive(Debug, Default)]
pub(super) struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeMap {
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn add_run(&mut self, run: Range<u64>) {
        if run.start < run.end {
            self.by_start.insert(run.start, run.end);
            self.by_length.insert((run.end - run.start, run.start));
            self.total += run.end - run.start;
        }
    }

    fn remove_run(&mut self, run: &Range<u64>) {
        self.by_start.remove(&run.start);
        self.by_length.remove(&(run.end - run.start, run.start));
        self.total -= run.end - run.start;
    }

    fn run_of(&self, block: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.by_start.range(..=block).next_back()?;
        (block < end).then_some(start..end)
    }

    pub(super) fn insert(&mut self, mut blocks: Range<u64>) {
        if let Some(before) = blocks.start.checked_sub(1).and_then(|block| self.run_of(block)) {
            self.remove_run(&before);
            blocks.start = before.start;
        }
        if let Some(after) = self.run_of(blocks.end) {
            self.remove_run(&after);
            blocks.end = after.end;
        }
        self.add_run(blocks);
    }

    /// Takes exactly these blocks. Returns false if not all of them are free.
    pub(super) fn carve(&mut self, blocks: &Range<u64>) -> bool {
        let Some(run) = self.run_of(blocks.start).filter(|run| blocks.end <= run.end) else { return false };
        self.remove_run(&run);
        self.add_run(run.start..blocks.start);
        self.add_run(blocks.end..run.end);
        true
    }

    fn take(&mut self, count: u64) -> Option<Range<u64>> {
        let &(_, start) = self.by_length.range((count, 0)..).next()?;
        let blocks = start..start + count;
        self.carve(&blocks).then_some(blocks)
    }

    pub(super) fn take_largest(&mut self, limit: u64) -> Option<Range<u64>> {
        let &(length, start) = self.by_length.last()?;
        let blocks = start..start + length.min(limit);
        self.carve(&blocks).then_some(blocks)
    }

    fn largest(&self) -> u64 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Any,
    /// Only blocks with allocated space, for when the disk is full.
    Warm,
}

#[derive(Debug, Default)]
pub(super) struct Allocator {
    pub(super) warm: FreeMap,
    pub(super) cold: FreeMap,
}

impl Allocator {
    /// `count` blocks, all free: cold in a new file, else warm, since their allocation is unknown.
    pub(super) fn new(count: u64, is_new: bool) -> Self {
        let mut allocator = Self::default();
        if is_new { &mut allocator.cold } else { &mut allocator.warm }.insert(0..count);
        allocator
    }

    pub(super) fn free(&self) -> u64 {
        self.warm.total() + self.cold.total()
    }

    /// Takes exactly these blocks. Returns false if not all of them are free.
    pub(super) fn claim(&mut self, blocks: &Range<u64>) -> bool {
        self.warm.carve(blocks) || self.cold.carve(blocks)
    }

    /// Takes `count` blocks: at `preferred` if they are free there, else in one run, else in several. Returns `None` if
    /// fewer blocks are free.
    pub(super) fn allocate(
        &mut self,
        count: u64,
        preferred: Option<u64>,
        choice: Choice,
    ) -> Option<Vec<Range<u64>>> {
        let mut none = FreeMap::default();
        let warm = &mut self.warm;
        let cold = if choice == Choice::Any { &mut self.cold } else { &mut none };
        if warm.total() + cold.total() < count {
            return None;
        }
        if let Some(start) = preferred {
            let blocks = start..start + count;
            if warm.carve(&blocks) || cold.carve(&blocks) {
                return Some(vec![blocks]);
            }
        }
        if let Some(blocks) = warm.take(count).or_else(|| cold.take(count)) {
            return Some(vec![blocks]);
        }
        let mut runs = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let from = if warm.largest() >= cold.largest() { &mut *warm } else { &mut *cold };
            let Some(run) = from.take_largest(missing) else { break };
            missing -= run.end - run.start;
            runs.push(run);
        }
        Some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u64, Option<u64>, Choice),
        Free(usize),
        Chill,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..20, prop::option::of(0u64..64), prop::bool::weighted(0.7)).prop_map(|(count, preferred, any)| {
                Step::Allocate(count, preferred, if any { Choice::Any } else { Choice::Warm })
            }),
            3 => any::<usize>().prop_map(Step::Free),
            1 => Just(Step::Chill),
        ]
    }

    proptest! {
        #[test]
        fn no_block_is_allocated_twice_or_lost(
            is_new in any::<bool>(), steps in prop::collection::vec(step(), 0..100),
        ) {
            let mut allocator = Allocator::new(64, is_new);
            let mut owned = [false; 64];
            let mut runs: Vec<Range<u64>> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(count, preferred, choice) => {
                        let (warm, cold) = (allocator.warm.total(), allocator.cold.total());
                        let Some(taken) = allocator.allocate(count, preferred, choice) else {
                            let free = if choice == Choice::Any { warm + cold } else { warm };
                            prop_assert!(free < count);
                            continue;
                        };
                        prop_assert!(choice == Choice::Any || allocator.cold.total() == cold);
                        prop_assert_eq!(taken.iter().map(|run| run.end - run.start).sum::<u64>(), count);
                        for block in taken.iter().cloned().flatten() {
                            prop_assert!(!owned[block as usize]);
                            owned[block as usize] = true;
                        }
                        runs.extend(taken);
                    }
                    Step::Free(which) if !runs.is_empty() => {
                        let run = runs.swap_remove(which % runs.len());
                        run.clone().for_each(|block| owned[block as usize] = false);
                        allocator.warm.insert(run);
                    }
                    Step::Free(_) => {}
                    Step::Chill => {
                        if let Some(run) = allocator.warm.take_largest(10) { allocator.cold.insert(run) }
                    }
                }
                let free = owned.iter().filter(|owned| !**owned).count() as u64;
                prop_assert_eq!(allocator.free(), free);
                for map in [&allocator.warm, &allocator.cold] {
                    let ends: Vec<_> = map.by_start.iter().collect();
                    prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "adjacent runs are merged");
                    prop_assert_eq!(map.by_start.len(), map.by_length.len());
                }
            }
        }
    }

    #[test]
    fn allocation_takes_the_smallest_fitting_run() {
        let mut allocator = Allocator::new(100, false);
        assert!(allocator.warm.carve(&(10..20)) && allocator.warm.carve(&(25..90)));
        let mut only = |count, preferred| match allocator.allocate(count, preferred, Choice::Warm).as_deref()
        {
            Some([run]) => run.clone(),
            other => panic!("expected one run, got {other:?}"),
        };
        assert_eq!(only(5, None), 20..25);
        assert_eq!(only(10, Some(85)), 0..10);
        assert_eq!(only(3, Some(92)), 92..95);
        assert_eq!(allocator.allocate(6, None, Choice::Warm), Some(vec![95..100, 90..91]));
    }
}
