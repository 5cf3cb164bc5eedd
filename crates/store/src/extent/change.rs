//! One change of one unit: allocate and write blocks, log the record, retire the old blocks.

use super::allocator::Choice;
use super::reclaim::bytes_below;
use super::record::{self, BLOCK, Extent, UnitRecord, bytes_of, within};
use super::space::Shortage;
use super::{DirtyUnit, ExtentStore, Pieces};
use crate::ledger::RecordKind;
use crate::locks::Held;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::limits::{PIECES_MAX, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, Generation, HomeId, Result, UnitId, View};
use tameike_io::Payload;

/// Largest number of blocks between two runs that an edit stores as one.
const GAP_MAX: usize = 8;

/// A locked unit under change. Dropped without [`Change::commit`], it leaves the unit unchanged.
pub(super) struct Change<'a> {
    store: &'a ExtentStore,
    unit: UnitId,
    before: UnitRecord,
    record: UnitRecord,
    /// Allocated runs, with the number of the unit's blocks that they replace.
    taken: Vec<(Vec<Range<u64>>, u64)>,
    freed: Vec<Range<u64>>,
    reserved: u64,
    /// Units used after this time are not evicted for this change.
    pub(super) victims_until: u64,
    _guard: Held<UnitId>,
}

/// The reason why a change did not get its blocks.
pub(super) enum Refused {
    /// All evictable units are locked, this one first: the caller waits for it, then retries the whole change.
    Busy(UnitId),
    /// Any other error; `ENOSPC` if nothing can be evicted.
    Fault(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Result of an attempt to evict a clean unit.
#[derive(PartialEq, Eq)]
enum Eviction {
    Done,
    /// All of them are locked; this is the least recently used one.
    Busy(UnitId),
    /// No unit can be evicted.
    Nothing,
}

fn count(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

impl ExtentStore {
    pub(super) async fn begin(&self, unit: UnitId) -> Result<Change<'_>> {
        let guard = self.locks.hold(unit).await;
        self.change(unit, guard)
    }

    fn change(&self, unit: UnitId, guard: Held<UnitId>) -> Result<Change<'_>> {
        let before = self.load(unit)?.unwrap_or_default();
        let record = before.clone();
        Ok(Change {
            store: self,
            unit,
            before,
            record,
            taken: Vec::new(),
            freed: Vec::new(),
            reserved: 0,
            victims_until: u64::MAX,
            _guard: guard,
        })
    }

    /// Evicts the least recently used clean unit that is not locked and was not used after `until`. `own` is the unit
    /// that needs the space.
    fn evict(&self, own: UnitId, until: u64) -> Result<Eviction> {
        /// Number of units examined per lock of the accounting.
        const BATCH: usize = 16;
        let (mut time, mut busy) = (0, None);
        loop {
            let mut victims = self.accounting.lock().victims(time, BATCH);
            victims.retain(|(used, _)| *used <= until);
            let Some(&(last, _)) = victims.last() else {
                return Ok(busy.map_or(Eviction::Nothing, Eviction::Busy));
            };
            for (_, victim) in victims.into_iter().filter(|(_, victim)| *victim != own) {
                let Some(guard) = self.locks.try_hold(victim) else {
                    busy = busy.or(Some(victim));
                    continue;
                };
                let mut change = self.change(victim, guard)?;
                if !change.has_clean() {
                    continue;
                }
                change.drop_clean();
                change.commit()?;
                return Ok(Eviction::Done);
            }
            time = last;
        }
    }

    /// Allocates blocks for `unit`, evicting clean units if necessary.
    async fn take(
        &self,
        (unit, victims_until): (UnitId, u64),
        count: u64,
        replaced: u64,
        preferred: Option<u64>,
        mut choice: Choice,
    ) -> Result<Vec<Range<u64>>, Refused> {
        let view = unit.inode.view();
        loop {
            let taken = self.accounting.lock().take(view, count, replaced, preferred, choice);
            let shortage = match taken {
                Ok(runs) => {
                    self.schedule_preallocation();
                    return Ok(runs);
                }
                Err(shortage) => shortage,
            };
            if shortage != Shortage::View
                && let Some(next) = self.reclaim_now(choice).await?
            {
                choice = next;
                continue;
            }
            let evicted = match shortage {
                Shortage::View if view != View::Cache => Eviction::Nothing,
                Shortage::View | Shortage::Device | Shortage::Below => self.evict(unit, victims_until)?,
            };
            match evicted {
                Eviction::Done => {}
                Eviction::Busy(unit) => return Err(Refused::Busy(unit)),
                Eviction::Nothing => return Err(self.full(view, shortage).into()),
            }
        }
    }

    pub(super) fn full(&self, view: View, shortage: Shortage) -> Fault {
        let space = self.space(view);
        let what = match shortage {
            Shortage::View => "the capacity of the view",
            Shortage::Device => "the space of the extents file",
            Shortage::Below => "the space of the disk below the extents file",
        };
        Fault::new(
            Errno::ENOSPC,
            format!(
                "{what} is used up on this node: view {}, {} of {} bytes used, {} of them dirty",
                view.as_str(),
                space.used,
                space.capacity,
                space.dirty
            ),
        )
    }
}

impl Change<'_> {
    /// Cached files: drops clean bytes of an older generation. Returns false if the unit has a newer one.
    pub(super) fn set_generation(&mut self, generation: Generation) -> bool {
        if self.unit.inode.is_cached() && self.record.generation < generation {
            self.drop_clean();
            self.record.generation = generation;
        }
        !self.unit.inode.is_cached() || self.record.generation == generation
    }

    /// Sets the home of a unit that has none yet.
    pub(super) fn set_home(&mut self, home: HomeId) {
        if self.before.is_empty() {
            self.record.home = home;
        }
    }

    pub(super) fn drop_clean(&mut self) {
        self.freed.extend(self.record.drop_clean());
    }

    pub(super) fn unit(&self) -> UnitId {
        self.unit
    }

    pub(super) fn has_clean(&self) -> bool {
        self.unit.inode.is_cached() && self.before.has_clean()
    }

    pub(super) fn truncate(&mut self, size: u32) {
        self.freed.extend(self.record.truncate(size));
    }

    pub(super) fn punch(&mut self, range: &Range<u32>) {
        self.freed.extend(self.record.punch(range));
    }

    pub(super) fn reserve(&mut self, blocks: &Range<u32>) -> Result<()> {
        // Space that this change gives up counts as used until the change is logged.
        let released = self.before.space().saturating_sub(self.record.space());
        let missing = self.record.unreserved(blocks);
        let wanted = u64::from(missing.len()).saturating_sub(released);
        let view = self.unit.inode.view();
        let reserved = self.store.accounting.lock().reserve_blocks(view, wanted);
        reserved.map_err(|shortage| self.store.full(view, shortage))?;
        self.reserved += wanted;
        missing.iter().for_each(|blocks| self.record.reserved.insert(blocks));
        Ok(())
    }

    /// Makes flushed bytes clean, unless they were written again.
    pub(super) fn mark_clean(&mut self, flushed: &DirtyUnit, generation: Generation) {
        self.record.clean(&flushed.ranges, flushed.version);
        self.record.generation = self.record.generation.max(generation);
    }

    /// Makes all bytes clean but `dirty`.
    pub(super) fn clean_all_but(&mut self, dirty: &RangeSet, generation: Generation) {
        self.record.dirty = dirty
            .iter()
            .flat_map(|dirty| within(&self.record.dirty, &dirty).iter().collect::<Vec<_>>())
            .collect();
        self.record.generation = self.record.generation.max(generation);
    }

    pub(super) fn gaps(&self, range: Range<u32>) -> Vec<Range<u32>> {
        self.record.held.gaps(range)
    }

    /// Replaces the unit's bytes at the ranges of `pieces`.
    pub(super) async fn put(&mut self, pieces: &Pieces, dirty: bool) -> Result<(), Refused> {
        let (first, payload) = self.whole_blocks(pieces).await?;
        self.store_all(&pieces.blocks(), first, &payload).await?;
        for range in pieces.ranges().iter() {
            self.record.held.insert(range.clone());
            if dirty { self.record.dirty.insert(range) } else { self.record.dirty.remove(range) }
        }
        Ok(())
    }

    /// Changes `blocks` by `edit`, which gets the unit's bytes: those of `needed` are valid, zeros where the unit has none.
    pub(super) async fn edit<T>(
        &mut self,
        blocks: &RangeSet,
        needed: &RangeSet,
        edit: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Refused> {
        let mut frame = self.store.scratch.take().await;
        for blocks in needed.iter() {
            let (filled, result) = self.store.read_blocks(self.unit, &self.record, &blocks, frame).await;
            result?;
            frame = filled;
            for gap in self.record.held.gaps(bytes_of(&blocks)) {
                frame[gap.start as usize..gap.end as usize].fill(0);
            }
        }
        let mut blocks = blocks.clone();
        for gap in self.small_gaps(&blocks) {
            let (filled, result) = self.store.read_blocks(self.unit, &self.record, &gap, frame).await;
            frame = filled;
            // Damaged blocks stay as they are.
            if result.is_ok() {
                blocks.insert(gap);
            }
        }
        let result = edit(&mut frame);
        let payload = Payload::new(Arc::new(frame), 0..blocks.end() * BLOCK);
        self.store_all(&blocks, 0, &payload).await?;
        blocks.iter().for_each(|blocks| self.record.held.insert(bytes_of(&blocks)));
        Ok(result)
    }

    /// Gaps between blocks to be stored that have data: to store them as well costs less than separate runs do.
    fn small_gaps(&self, blocks: &RangeSet) -> Vec<Range<u32>> {
        let runs = || blocks.iter();
        let gaps = runs().zip(runs().skip(1)).map(|(run, next)| run.end..next.start);
        let is_small = |gap: &Range<u32>| gap.len() <= GAP_MAX && self.record.held.contains(&bytes_of(gap));
        gaps.filter(is_small).collect()
    }

    /// Stores `blocks`; the payload has the bytes of the unit from byte `first` on.
    async fn store_all(&mut self, blocks: &RangeSet, first: u32, payload: &Payload) -> Result<(), Refused> {
        for blocks in blocks.iter() {
            let bytes = bytes_of(&blocks);
            self.store_blocks(&blocks, &payload.slice(bytes.start - first..bytes.end - first)).await?;
        }
        Ok(())
    }

    /// The new content of the blocks of `pieces`, in a payload from the first of these blocks on. Partly written blocks
    /// keep the unit's other bytes. Blocks begin at addresses that direct I/O can use.
    async fn whole_blocks(&self, pieces: &Pieces) -> Result<(u32, Payload)> {
        let edges = pieces.edges();
        let blocks = pieces.blocks();
        let first = blocks.iter().next().map_or(0, |blocks| blocks.start * BLOCK);
        let aligned = pieces.in_one().filter(|payload| payload.start().is_multiple_of(BLOCK));
        if let Some(payload) = aligned.filter(|_| edges.is_empty()) {
            return Ok((first, payload.clone()));
        }
        let mut frame = self.store.scratch.take().await;
        for block in edges.into_iter().map(|block| block..block + 1) {
            let bytes = bytes_of(&block);
            if within(&self.record.held, &bytes).iter().all(|held| pieces.ranges().contains(&held)) {
                frame[bytes.start as usize..bytes.end as usize].fill(0);
                continue;
            }
            let (filled, result) = self.store.read_blocks(self.unit, &self.record, &block, frame).await;
            result?;
            frame = filled;
        }
        pieces.copy_to(&mut frame);
        Ok((first, Payload::new(Arc::new(frame), first..blocks.end() * BLOCK)))
    }

    /// Writes the whole content of `blocks` to new blocks. If the disk has no space for them, it takes warm ones.
    async fn store_blocks(&mut self, blocks: &Range<u32>, payload: &Payload) -> Result<(), Refused> {
        let replaced = self.record.blocks_among(blocks) + self.record.reserved_among(blocks);
        let wanted = u64::from(blocks.end - blocks.start);
        let before = self.record.extents.iter().find(|extent| extent.blocks().end == blocks.start);
        let preferred = before.map(|extent| extent.device_blocks().end);
        let mut choice = Choice::Any;
        let extents = loop {
            let runs =
                self.store.take((self.unit, self.victims_until), wanted, replaced, preferred, choice).await?;
            self.taken.push((runs.clone(), replaced));
            match self.write_runs(&runs, blocks.start, payload).await {
                Ok(extents) => break extents,
                Err((written, fault)) if fault.errno == Errno::ENOSPC => {
                    self.release_taken_from(written).await?
                }
                Err((_, fault)) => return Err(fault.into()),
            }
            choice = Choice::Warm;
        };
        self.record.reserved.remove(blocks.clone());
        self.freed.extend(self.record.replace(blocks, extents));
        Ok(())
    }

    /// Writes the payload to `runs`, as the unit's blocks from `first` on. An error comes with the number of runs that
    /// were written.
    async fn write_runs(
        &self,
        runs: &[Range<u64>],
        first: u32,
        payload: &Payload,
    ) -> Result<Vec<Extent>, (usize, Fault)> {
        let version = self.store.versions.fetch_add(1, Ordering::AcqRel);
        let mut extents = Vec::with_capacity(runs.len());
        let mut place = 0;
        for run in runs {
            let size = (run.end - run.start) as u32 * BLOCK;
            let bytes = payload.slice(place..place + size);
            let extent = Extent::new(first + place / BLOCK, run.start, version, &bytes.sums());
            let written = self.store.disk.write(run.start * u64::from(BLOCK), bytes).await;
            written.map_err(|fault| (extents.len(), fault))?;
            extents.push(extent);
            place += size;
        }
        Ok(extents)
    }

    /// Returns the last allocation; its runs from number `written` on lack space on the disk.
    async fn release_taken_from(&mut self, written: usize) -> Result<()> {
        let unwritten = self.taken.last().map_or_else(Vec::new, |(runs, _)| runs[written..].to_vec());
        for run in &unwritten {
            // The failed write may have allocated a part of it.
            self.store.disk.discard(bytes_below(run)).await?;
        }
        if let Some((mut runs, replaced)) = self.taken.pop() {
            runs.truncate(written);
            self.store.accounting.lock().release_taken(self.unit.inode.view(), runs, unwritten, replaced);
        }
        Ok(())
    }

    /// Keeps the record small: rewrites a unit with too many extents as one.
    pub(super) async fn defragment(&mut self) -> Result<()> {
        let cached = self.unit.inode.is_cached();
        self.record.merge_dirty(PIECES_MAX);
        let scattered = self.record.extents.len() > PIECES_MAX;
        let ragged = !cached && self.record.held.count() > PIECES_MAX;
        if !scattered && !ragged {
            return Ok(());
        }
        let (Some(first), Some(last)) = (self.record.extents.first(), self.record.extents.last()) else {
            return Ok(());
        };
        let blocks = first.first..last.blocks().end;
        let frame = self.store.scratch.take().await;
        let (mut frame, result) = self.store.read_blocks(self.unit, &self.record, &blocks, frame).await;
        result?;
        for gap in self.record.held.gaps(0..UNIT_SIZE as u32) {
            frame[gap.start as usize..gap.end as usize].fill(0);
        }
        let payload = Payload::new(Arc::new(frame), bytes_of(&blocks));
        match self.store_blocks(&blocks, &payload).await {
            Ok(()) => {}
            Err(Refused::Fault(fault)) if fault.errno != Errno::ENOSPC => return Err(fault),
            // The unit stays fragmented: slower to read, but valid.
            Err(_) => return Ok(()),
        }
        if !cached {
            // Readers see zeros in the gaps, and the blocks now contain zeros.
            let end = self.record.held.end();
            self.record.held.insert(blocks.start * BLOCK..end);
        }
        Ok(())
    }

    /// Commits a change that has stored blocks.
    pub(super) async fn finish(mut self) -> Result<()> {
        self.defragment().await?;
        self.commit()
    }

    pub(super) fn commit(mut self) -> Result<()> {
        if self.record == self.before || (self.record.is_empty() && self.before.is_empty()) {
            return Ok(());
        }
        self.freed.extend(if self.record.held.is_empty() { self.record.drop_clean() } else { Vec::new() });
        let kept = (!self.record.is_empty()).then_some(&self.record);
        let body = record::log_body(self.unit, kept)?;
        let ledger = &self.store.ledger;
        ledger.execute(RecordKind::Extents, &body, |table| record::apply(&body, table))?;
        let sequence = ledger.position();
        let view = self.unit.inode.view();
        // Blocks counted as used for this change, beyond what the new record uses.
        let taken = std::mem::take(&mut self.taken);
        let taken: u64 = taken.into_iter().map(|(runs, replaced)| count(&runs) - replaced).sum();
        let counted = self.before.space() + taken + std::mem::take(&mut self.reserved);
        let surplus = counted - self.record.space();
        let freed = std::mem::take(&mut self.freed);
        {
            let accounting = &mut *self.store.accounting.lock();
            accounting.subtract_used(view, surplus);
            accounting.retire(sequence, freed);
            accounting.count_dirty(view, self.before.dirty.len(), self.record.dirty.len());
            if self.unit.inode.is_cached() {
                accounting.touch(self.unit, kept_clean(&self.record));
            }
        }
        self.store.space_freed.notify(usize::MAX);
        self.store.schedule_reclaim();
        Ok(())
    }
}

fn kept_clean(record: &UnitRecord) -> bool {
    !record.held.is_empty() && record.is_clean()
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let accounting = &mut *self.store.accounting.lock();
        for (runs, replaced) in self.taken.drain(..) {
            accounting.release_taken(self.unit.inode.view(), runs, Vec::new(), replaced);
        }
        accounting.subtract_used(self.unit.inode.view(), self.reserved);
    }
}
