//! Space accounting of one device: free, used, retired and evictable blocks.
//!
//! Freed blocks stay in quarantine until the log record that freed them is known to be durable: after a crash the table
//! may still name them. Clean units of the cache view are tracked by time of last use, at about 120 bytes of memory per
//! unit.

use super::allocator::{Allocator, Choice};
use super::record::BLOCK;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tameike_core::limits::BLOCKS_PER_UNIT;
use tameike_core::wire::admin::Space;
use tameike_core::{Fault, Result, UnitId, View};

/// Warm free blocks kept at rest for reuse: 16 MiB.
const WARM_BLOCKS: u64 = (16 << 20) / BLOCK as u64;
/// Warm free blocks kept while writes allocate, by preallocation if necessary: 64 MiB.
const WARM_BLOCKS_ACTIVE: u64 = (64 << 20) / BLOCK as u64;
/// Pause after a failed preallocation.
const PREALLOCATION_RETRY_TIME: Duration = Duration::from_secs(1);

/// The reason why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The view is at its capacity.
    View,
    /// The device has no free blocks.
    Device,
    /// The disk below the device is full, and no warm block is free.
    Below,
}

/// Units by time of last use.
#[derive(Default)]
struct Recency {
    clock: u64,
    by_unit: BTreeMap<UnitId, u64>,
    by_time: BTreeMap<u64, UnitId>,
}

impl Recency {
    fn remove(&mut self, unit: UnitId) {
        if let Some(time) = self.by_unit.remove(&unit) {
            self.by_time.remove(&time);
        }
    }

    fn touch(&mut self, unit: UnitId) {
        self.remove(unit);
        self.clock += 1;
        self.by_unit.insert(unit, self.clock);
        self.by_time.insert(self.clock, unit);
    }
}

#[derive(Default)]
pub(super) struct SpaceAccounting {
    allocator: Allocator,
    /// Freed blocks with the sequence number of the record that freed them, ascending.
    quarantine: VecDeque<(u64, Range<u64>)>,
    quarantined: u64,
    /// Number of blocks whose space is being discarded; they are neither free nor used.
    discarding: u64,
    /// The same for blocks whose space is being preallocated.
    preallocating: u64,
    /// A writer wanted warm blocks since the last [`Self::warm_target`].
    active: bool,
    /// Time until which no preallocation is tried, because the last one failed.
    no_preallocation_until: Duration,
    capacity: [u64; 3],
    /// Blocks in the index or being written, by view.
    used: [u64; 3],
    dirty_bytes: [u64; 3],
    clean: Recency,
}

impl SpaceAccounting {
    /// Of a device whose blocks are all free: cold if it `is_new`, else warm.
    pub(super) fn new(blocks: u64, is_new: bool, capacity: [u64; 3]) -> Self {
        Self { allocator: Allocator::new(blocks, is_new), capacity, ..Self::default() }
    }

    /// Counts blocks that the index names as used.
    pub(super) fn adopt(&mut self, unit: UnitId, blocks: &Range<u64>) -> Result<()> {
        if !self.allocator.claim(blocks) {
            return Err(Fault::io(format!(
                "the index is damaged: unit {} of {} names blocks {} to {} of the extents file, which are outside \
                 of it or belong to another unit",
                unit.index, unit.inode, blocks.start, blocks.end
            )));
        }
        self.used[unit.inode.view().index()] += blocks.end - blocks.start;
        Ok(())
    }

    /// Counts blocks that the index reserves as used.
    pub(super) fn adopt_reserved(&mut self, view: View, count: u32) {
        self.used[view.index()] += u64::from(count);
    }

    /// Allocates `count` blocks for a unit, whose index record then drops `replaced` blocks.
    pub(super) fn take(
        &mut self,
        view: View,
        count: u64,
        replaced: u64,
        preferred: Option<u64>,
        choice: Choice,
    ) -> Result<Vec<Range<u64>>, Shortage> {
        let used = self.used[view.index()] + count - replaced;
        if used > self.used[view.index()] && used * u64::from(BLOCK) > self.capacity[view.index()] {
            return Err(Shortage::View);
        }
        let shortage = if choice == Choice::Any { Shortage::Device } else { Shortage::Below };
        let runs = self.allocator.allocate(count, preferred, choice).ok_or(shortage)?;
        self.used[view.index()] = used;
        Ok(runs)
    }

    /// Counts `count` blocks without data as used; [`Self::subtract_used`] undoes it.
    pub(super) fn reserve_blocks(&mut self, view: View, count: u64) -> Result<(), Shortage> {
        if count > self.left(view) {
            return Err(Shortage::View);
        }
        self.used[view.index()] += count;
        Ok(())
    }

    /// Number of blocks that the view may still use.
    pub(super) fn left(&self, view: View) -> u64 {
        (self.capacity[view.index()] / u64::from(BLOCK)).saturating_sub(self.used[view.index()])
    }

    /// Undoes [`Self::take`]; the blocks of `unwritten` have no space on the disk.
    pub(super) fn release_taken(
        &mut self,
        view: View,
        runs: Vec<Range<u64>>,
        unwritten: Vec<Range<u64>>,
        replaced: u64,
    ) {
        for run in runs.iter().chain(&unwritten) {
            self.used[view.index()] -= run.end - run.start;
        }
        runs.into_iter().for_each(|run| self.allocator.warm.insert(run));
        unwritten.into_iter().for_each(|run| self.allocator.cold.insert(run));
        self.used[view.index()] += replaced;
    }

    /// Puts blocks that record `sequence` dropped from the index into quarantine. They still count as used.
    pub(super) fn retire(&mut self, sequence: u64, runs: Vec<Range<u64>>) {
        // Two changes may arrive in the other order than their records; a later number is always correct.
        let sequence = self.quarantine.back().map_or(sequence, |(last, _)| sequence.max(*last));
        for run in runs {
            self.quarantined += run.end - run.start;
            self.quarantine.push_back((sequence, run));
        }
    }

    /// Subtracts `count` blocks from what the view uses.
    pub(super) fn subtract_used(&mut self, view: View, count: u64) {
        self.used[view.index()] -= count;
    }

    /// Frees the blocks whose records are confirmed. Calls `before_free` for each run first.
    pub(super) fn release(&mut self, confirmed: u64, before_free: impl Fn(&Range<u64>)) {
        let confirmed_end = self.quarantine.partition_point(|(sequence, _)| *sequence <= confirmed);
        for (_, run) in self.quarantine.drain(..confirmed_end) {
            before_free(&run);
            self.quarantined -= run.end - run.start;
            self.allocator.warm.insert(run);
        }
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Number of blocks that will become free without a change of a unit.
    pub(super) fn returning(&self) -> u64 {
        self.quarantined + self.discarding + self.preallocating
    }

    /// Takes a run of warm free blocks for a discard, while more than `keep` are warm.
    pub(super) fn begin_discard(&mut self, keep: u64, limit: u64) -> Option<Range<u64>> {
        let run = (self.allocator.warm.total() > keep).then(|| self.allocator.warm.take_largest(limit))??;
        self.discarding += run.end - run.start;
        Some(run)
    }

    /// Ends a discard: it succeeded, or (`!done`) failed.
    pub(super) fn end_discard(&mut self, run: Range<u64>, done: bool) {
        self.discarding -= run.end - run.start;
        if done { self.allocator.cold.insert(run) } else { self.allocator.warm.insert(run) }
    }

    /// Number of warm free blocks that are not discarded: few, unless a writer wanted warm blocks since the last call.
    pub(super) fn warm_target(&mut self) -> u64 {
        if std::mem::take(&mut self.active) { WARM_BLOCKS_ACTIVE } else { WARM_BLOCKS }
    }

    /// Takes a run of cold free blocks for preallocation if warm ones run short, at most what the views may still use.
    /// Returns `None` for a while after a failure.
    pub(super) fn begin_preallocation(&mut self, now: Duration) -> Option<Range<u64>> {
        self.active = true;
        if now < self.no_preallocation_until {
            return None;
        }
        let target = WARM_BLOCKS_ACTIVE.min(View::ALL.iter().map(|view| self.left(*view)).sum());
        let warm = self.allocator.warm.total() + self.preallocating;
        let run = (warm < target / 2).then(|| self.allocator.cold.take_largest(target - warm))??;
        self.preallocating += run.end - run.start;
        Some(run)
    }

    /// Ends a preallocation that succeeded.
    pub(super) fn end_preallocation(&mut self, run: Range<u64>) {
        self.preallocating -= run.end - run.start;
        self.allocator.warm.insert(run);
    }

    /// Ends a preallocation that failed.
    pub(super) fn fail_preallocation(&mut self, run: Range<u64>, now: Duration) {
        self.preallocating -= run.end - run.start;
        self.allocator.cold.insert(run);
        self.no_preallocation_until = now + PREALLOCATION_RETRY_TIME;
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> u64 {
        self.allocator.free()
    }

    /// Returns true if more blocks are warm than are kept at rest.
    pub(super) fn has_surplus(&self) -> bool {
        self.allocator.warm.total() > WARM_BLOCKS
    }

    pub(super) fn count_dirty(&mut self, view: View, before: u32, after: u32) {
        let dirty = &mut self.dirty_bytes[view.index()];
        *dirty = *dirty + u64::from(after) - u64::from(before);
    }

    /// Records a use of the unit. Only wholly clean units are evictable.
    pub(super) fn touch(&mut self, unit: UnitId, clean: bool) {
        if clean { self.clean.touch(unit) } else { self.clean.remove(unit) }
    }

    pub(super) fn time(&self) -> u64 {
        self.clean.clock
    }

    /// Returns true if the view has space for so many blocks, or would have after evictions of clean units not used
    /// since `time`.
    pub(super) fn has_space_since(&self, view: View, blocks: u64, time: u64) -> bool {
        let oldest = self.clean.by_time.first_key_value();
        oldest.is_some_and(|(used, _)| *used <= time)
            || (self.left(view) >= blocks && self.allocator.free() + self.returning() >= blocks)
    }

    /// Clean units used after `time`, least recently used first, each with its time.
    pub(super) fn victims(&self, time: u64, limit: usize) -> Vec<(u64, UnitId)> {
        self.clean.by_time.range(time + 1..).map(|(&time, &unit)| (time, unit)).take(limit).collect()
    }

    /// Returns true if the view has space for one more unit, free or evictable.
    pub(super) fn has_space(&self, view: View) -> bool {
        let unit = (BLOCKS_PER_UNIT as u64).min(self.capacity[view.index()] / u64::from(BLOCK));
        let evictable = !self.clean.by_unit.is_empty();
        let in_view = (self.used[view.index()] + unit) * u64::from(BLOCK) <= self.capacity[view.index()];
        let on_device = self.allocator.free() + self.returning() >= unit;
        (in_view || (view == View::Cache && evictable)) && (on_device || evictable)
    }

    pub(super) fn space(&self, view: View) -> Space {
        Space {
            capacity: self.capacity[view.index()],
            used: self.used[view.index()] * u64::from(BLOCK),
            dirty: self.dirty_bytes[view.index()],
            inodes: 0,
        }
    }
}
