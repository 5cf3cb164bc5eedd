//! What is free, what is used by whom, and what may go.
//!
//! Freed blocks rest in quarantine until the log's record that freed them is confirmed to be safe: after a crash
//! the table may still name them. Clean units of the cache are known with the time of their last use, at about 120 bytes of
//! memory per unit.

use super::allocator::{Allocator, Choice};
use super::record::BLOCK;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tameike_core::limits::BLOCKS_PER_UNIT;
use tameike_core::wire::admin::Space;
use tameike_core::{Fault, Result, UnitId, View};

/// Free blocks whose space is kept at rest, to be used again soon: 16 MiB.
const WARM_BLOCKS: u64 = (16 << 20) / BLOCK as u64;
/// Free blocks that have space while blocks are taken, if need be by setting it aside: 64 MiB.
const STOCK_BLOCKS: u64 = (64 << 20) / BLOCK as u64;
/// Time after which space is asked for again that was refused.
const STOCK_RETRY_TIME: Duration = Duration::from_secs(1);

/// Why blocks cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The view is at its capacity.
    View,
    /// The device has no free blocks.
    Device,
    /// What is below the device has no space, nor have the free blocks.
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

/// The books of one disk.
pub(super) struct Books {
    allocator: Allocator,
    /// Freed blocks with the sequence number of the record that freed them, ascending.
    quarantine: VecDeque<(u64, Range<u64>)>,
    quarantined: u64,
    /// Blocks that are neither free nor used while their space is given back.
    discarding: u64,
    /// The same while space is set aside for them.
    stocking: u64,
    /// A stock was asked for since the last [`Self::reserve`].
    active: bool,
    /// Until then none is asked for: the last one was refused.
    refused_until: Duration,
    capacity: [u64; 3],
    /// Blocks in the index or being written, by view.
    used: [u64; 3],
    dirty_bytes: [u64; 3],
    clean: Recency,
}

impl Books {
    /// Of a device that is all free. Where it `is_new`, none of it has space.
    pub(super) fn new(blocks: u64, is_new: bool, capacity: [u64; 3]) -> Self {
        Self {
            allocator: Allocator::new(blocks, is_new),
            quarantine: VecDeque::new(),
            quarantined: 0,
            discarding: 0,
            stocking: 0,
            active: false,
            refused_until: Duration::ZERO,
            capacity,
            used: [0; 3],
            dirty_bytes: [0; 3],
            clean: Recency::default(),
        }
    }

    /// Takes blocks that the index names.
    pub(super) fn adopt(&mut self, unit: UnitId, blocks: &Range<u64>) -> Result<()> {
        if !self.allocator.claim(blocks) {
            return Err(Fault::io(format!(
                "the index is damaged: unit {} of {} names blocks {} to {} of the extents file, which lie outside \
                 of it or belong to another unit",
                unit.index, unit.inode, blocks.start, blocks.end
            )));
        }
        self.used[unit.inode.view().index()] += blocks.end - blocks.start;
        Ok(())
    }

    /// Takes over what the index says is set aside.
    pub(super) fn adopt_reserved(&mut self, view: View, count: u32) {
        self.used[view.index()] += u64::from(count);
    }

    /// Takes `count` blocks for a unit, in whose index they replace `replaced` blocks.
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

    /// Counts `count` blocks as used for which nothing is written yet; [`Self::unuse`] undoes it.
    pub(super) fn set_aside(&mut self, view: View, count: u64) -> Result<(), Shortage> {
        if count > self.left(view) {
            return Err(Shortage::View);
        }
        self.used[view.index()] += count;
        Ok(())
    }

    /// Blocks that the view may still use.
    pub(super) fn left(&self, view: View) -> u64 {
        (self.capacity[view.index()] / u64::from(BLOCK)).saturating_sub(self.used[view.index()])
    }

    /// Undoes [`Self::take`]: `lacking` of the blocks have no space.
    pub(super) fn untake(
        &mut self,
        view: View,
        runs: Vec<Range<u64>>,
        lacking: Vec<Range<u64>>,
        replaced: u64,
    ) {
        for run in runs.iter().chain(&lacking) {
            self.used[view.index()] -= run.end - run.start;
        }
        runs.into_iter().for_each(|run| self.allocator.warm.insert(run));
        lacking.into_iter().for_each(|run| self.allocator.cold.insert(run));
        self.used[view.index()] += replaced;
    }

    /// Blocks that the index names no more, since the record `sequence`. Not yet taken off what is used.
    pub(super) fn retire(&mut self, sequence: u64, runs: Vec<Range<u64>>) {
        // Two changes may come in the other order than their records: a later number is always right too.
        let sequence = self.quarantine.back().map_or(sequence, |(last, _)| sequence.max(*last));
        for run in runs {
            self.quarantined += run.end - run.start;
            self.quarantine.push_back((sequence, run));
        }
    }

    /// Takes `count` blocks off what the view uses.
    pub(super) fn unuse(&mut self, view: View, count: u64) {
        self.used[view.index()] -= count;
    }

    /// Frees the blocks whose records are confirmed, each run after it was told.
    pub(super) fn release(&mut self, confirmed: u64, tell: impl Fn(&Range<u64>)) {
        let safe = self.quarantine.partition_point(|(sequence, _)| *sequence <= confirmed);
        for (_, run) in self.quarantine.drain(..safe) {
            tell(&run);
            self.quarantined -= run.end - run.start;
            self.allocator.warm.insert(run);
        }
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Blocks that come back to the free ones by themselves.
    pub(super) fn returning(&self) -> u64 {
        self.quarantined + self.discarding + self.stocking
    }

    /// Takes a run of warm free blocks to give their space back, as long as more than `reserve` are warm.
    pub(super) fn begin_discard(&mut self, reserve: u64, limit: u64) -> Option<Range<u64>> {
        let run =
            (self.allocator.warm.total() > reserve).then(|| self.allocator.warm.take_largest(limit))??;
        self.discarding += run.end - run.start;
        Some(run)
    }

    /// The run's space is given back, or (`!done`) could not be.
    pub(super) fn end_discard(&mut self, run: Range<u64>, done: bool) {
        self.discarding -= run.end - run.start;
        if done { self.allocator.cold.insert(run) } else { self.allocator.warm.insert(run) }
    }

    /// Warm free blocks whose space is not given back: few, unless a stock was asked for since this was last called.
    pub(super) fn reserve(&mut self) -> u64 {
        if std::mem::take(&mut self.active) { STOCK_BLOCKS } else { WARM_BLOCKS }
    }

    /// Takes a run of cold free blocks to set space aside for them, when warm ones run short: no more than the views may
    /// still use. None for a while after it was refused.
    pub(super) fn begin_stock(&mut self, now: Duration) -> Option<Range<u64>> {
        self.active = true;
        if now < self.refused_until {
            return None;
        }
        let stock = STOCK_BLOCKS.min(View::ALL.iter().map(|view| self.left(*view)).sum());
        let warm = self.allocator.warm.total() + self.stocking;
        let run = (warm < stock / 2).then(|| self.allocator.cold.take_largest(stock - warm))??;
        self.stocking += run.end - run.start;
        Some(run)
    }

    /// The run has space.
    pub(super) fn end_stock(&mut self, run: Range<u64>) {
        self.stocking -= run.end - run.start;
        self.allocator.warm.insert(run);
    }

    /// The run was to have space, and has none.
    pub(super) fn refuse_stock(&mut self, run: Range<u64>, now: Duration) {
        self.stocking -= run.end - run.start;
        self.allocator.cold.insert(run);
        self.refused_until = now + STOCK_RETRY_TIME;
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> u64 {
        self.allocator.free()
    }

    /// Whether more blocks are warm than are kept so at rest.
    pub(super) fn has_surplus(&self) -> bool {
        self.allocator.warm.total() > WARM_BLOCKS
    }

    /// The unit's dirty bytes were `before` and are `after`.
    pub(super) fn count_dirty(&mut self, view: View, before: u32, after: u32) {
        let dirty = &mut self.dirty_bytes[view.index()];
        *dirty = *dirty + u64::from(after) - u64::from(before);
    }

    /// The unit was used, and is all clean or not.
    pub(super) fn touch(&mut self, unit: UnitId, clean: bool) {
        if clean { self.clean.touch(unit) } else { self.clean.remove(unit) }
    }

    /// The last time of use that was given.
    pub(super) fn time(&self) -> u64 {
        self.clean.clock
    }

    /// Whether so many blocks have room in the view, or would have after clean units went that were not used since `time`.
    pub(super) fn has_room_since(&self, view: View, blocks: u64, time: u64) -> bool {
        let oldest = self.clean.by_time.first_key_value();
        oldest.is_some_and(|(used, _)| *used <= time)
            || (self.left(view) >= blocks && self.allocator.free() + self.returning() >= blocks)
    }

    /// Clean units used after `time`, the least recently used first, each with the time.
    pub(super) fn victims(&self, time: u64, limit: usize) -> Vec<(u64, UnitId)> {
        self.clean.by_time.range(time + 1..).map(|(&time, &unit)| (time, unit)).take(limit).collect()
    }

    /// Whether one more unit has room in the view, or would have after clean units went.
    pub(super) fn has_room(&self, view: View) -> bool {
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
