//! One change of one unit: blocks are taken and written, the record is logged, the old blocks are retired.

use super::locks::WriteGuard;
use super::record::{self, BLOCK, Extent, UnitRecord, blocks_of, bytes_of, within};
use super::space::Shortage;
use super::{DirtyUnit, ExtentStore};
use crate::ledger::RecordKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::limits::{PIECES_MAX, UNIT_SIZE};
use tameike_core::{Errno, Fault, Generation, Result, UnitId, View};
use tameike_io::Payload;

/// A unit in one owner's hands. Dropped without [`Change::commit`], it leaves the unit as it was.
pub(super) struct Change<'a> {
    store: &'a ExtentStore,
    unit: UnitId,
    before: UnitRecord,
    record: UnitRecord,
    /// Blocks taken, with the number of the unit's blocks for which they stand.
    taken: Vec<(Vec<Range<u64>>, u64)>,
    freed: Vec<Range<u64>>,
    _guard: WriteGuard,
}

fn covers(outer: &Range<u32>, inner: &Range<u32>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn count(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

impl ExtentStore {
    /// Takes the unit for a change.
    pub(super) async fn begin(&self, unit: UnitId) -> Result<Change<'_>> {
        let guard = self.locks.write(unit).await;
        self.change(unit, guard)
    }

    fn change(&self, unit: UnitId, guard: WriteGuard) -> Result<Change<'_>> {
        let before = self.load(unit)?.unwrap_or_default();
        let record = before.clone();
        Ok(Change { store: self, unit, before, record, taken: Vec::new(), freed: Vec::new(), _guard: guard })
    }

    /// Lets one clean unit go; false when there is none that nobody uses.
    fn evict(&self) -> Result<bool> {
        /// Units in use that are passed over before giving up.
        const TRIES: usize = 16;
        let victims = self.books.lock().victims(TRIES);
        for victim in victims {
            let Some(guard) = self.locks.try_write(victim) else { continue };
            let mut change = self.change(victim, guard)?;
            change.drop_clean();
            change.commit()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes blocks, after making room where that can be done.
    async fn take(
        &self,
        view: View,
        count: u64,
        replaced: u64,
        wish: Option<u64>,
    ) -> Result<Vec<Range<u64>>> {
        loop {
            let shortage = match self.books.lock().take(view, count, replaced, wish) {
                Ok(runs) => return Ok(runs),
                Err(shortage) => shortage,
            };
            let made_room = match shortage {
                Shortage::View => view == View::Cache && self.evict()?,
                Shortage::Device => self.reclaim_now().await? || self.evict()?,
            };
            if !made_room {
                let space = self.space(view);
                let what = match shortage {
                    Shortage::View => "the capacity of the view",
                    Shortage::Device => "the space of the extents file",
                };
                return Err(Fault::new(
                    Errno::ENOSPC,
                    format!(
                        "{what} is used up on this node: view {}, {} of {} bytes used, {} of them dirty",
                        view.as_str(),
                        space.used,
                        space.capacity,
                        space.dirty
                    ),
                ));
            }
        }
    }
}

impl Change<'_> {
    /// Cached files: drops clean bytes of an older generation. False when the unit is of a newer one.
    pub(super) fn renew(&mut self, generation: Generation) -> bool {
        if self.unit.inode.is_cached() && self.record.generation < generation {
            self.drop_clean();
            self.record.generation = generation;
        }
        !self.unit.inode.is_cached() || self.record.generation == generation
    }

    pub(super) fn drop_clean(&mut self) {
        self.freed.extend(self.record.drop_clean());
    }

    pub(super) fn truncate(&mut self, size: u32) {
        self.freed.extend(self.record.truncate(size));
    }

    pub(super) fn mark_clean(&mut self, flushed: &DirtyUnit, generation: Generation) {
        self.record.clean(&flushed.ranges, flushed.version);
        self.record.generation = self.record.generation.max(generation);
    }

    pub(super) fn gaps(&self, range: Range<u32>) -> Vec<Range<u32>> {
        self.record.held.gaps(range)
    }

    /// Puts `payload` in the place of `range`.
    pub(super) async fn put(&mut self, range: Range<u32>, payload: Payload, dirty: bool) -> Result<()> {
        let blocks = blocks_of(&range);
        let payload = self.whole_blocks(&range, payload).await?;
        self.store_blocks(&blocks, &payload).await?;
        self.record.held.insert(range.clone());
        if dirty {
            self.record.dirty.insert(range)
        } else {
            self.record.dirty.remove(range)
        }
        Ok(())
    }

    /// The payload with what the unit holds in the blocks that it fills in part only.
    async fn whole_blocks(&self, range: &Range<u32>, payload: Payload) -> Result<Payload> {
        let blocks = blocks_of(range);
        let bytes = bytes_of(&blocks);
        if bytes == *range {
            return Ok(payload);
        }
        let mut frame = self.store.scratch.take().await;
        let first = (bytes.start < range.start).then_some(blocks.start);
        let last = (range.end < bytes.end).then_some(blocks.end - 1);
        for block in first.into_iter().chain(last.filter(|last| first != Some(*last))) {
            let block = block..block + 1;
            if within(&self.record.held, &bytes_of(&block)).iter().all(|held| covers(range, &held)) {
                let block = bytes_of(&block);
                frame[block.start as usize..block.end as usize].fill(0);
                continue;
            }
            let (filled, result) = self.store.read_blocks(self.unit, &self.record, &block, frame).await;
            result?;
            frame = filled;
        }
        frame[range.start as usize..range.end as usize].copy_from_slice(&payload);
        Ok(Payload::new(Arc::new(frame), bytes))
    }

    /// Writes the whole content of `blocks` to newly taken blocks.
    async fn store_blocks(&mut self, blocks: &Range<u32>, payload: &Payload) -> Result<()> {
        let replaced = self.record.blocks_among(blocks);
        let wanted = u64::from(blocks.end - blocks.start);
        let before = self.record.extents.iter().find(|extent| extent.blocks().end == blocks.start);
        let wish = before.map(|extent| extent.device_blocks().end);
        let runs = self.store.take(self.unit.inode.view(), wanted, replaced, wish).await?;
        self.taken.push((runs.clone(), replaced));
        let version = self.store.versions.fetch_add(1, Ordering::AcqRel);
        let mut extents = Vec::with_capacity(runs.len());
        let mut place = 0;
        for run in runs {
            let size = (run.end - run.start) as u32 * BLOCK;
            let bytes = payload.slice(place..place + size);
            extents.push(Extent::new(blocks.start + place / BLOCK, run.start, version, &bytes));
            self.store.disk.write(run.start * u64::from(BLOCK), bytes).await?;
            place += size;
        }
        self.freed.extend(self.record.replace(blocks, extents));
        Ok(())
    }

    /// Keeps the record small: a unit in too many pieces is rewritten as one.
    pub(super) async fn tidy(&mut self) -> Result<()> {
        let cached = self.unit.inode.is_cached();
        self.record.join_dirty(PIECES_MAX);
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
            // The unit stays in pieces: worse to read, but whole.
            Err(fault) if fault.errno == Errno::ENOSPC => return Ok(()),
            result => result?,
        }
        if !cached {
            // What it does not hold is zero to its readers, and now in fact.
            let end = self.record.held.end();
            self.record.held.insert(blocks.start * BLOCK..end);
        }
        Ok(())
    }

    /// Logs the change.
    pub(super) fn commit(mut self) -> Result<()> {
        if self.record == self.before || (self.record.held.is_empty() && self.before.held.is_empty()) {
            return Ok(());
        }
        self.freed.extend(if self.record.held.is_empty() { self.record.drop_clean() } else { Vec::new() });
        let kept = (!self.record.held.is_empty()).then_some(&self.record);
        let body = record::log_body(self.unit, kept)?;
        let ledger = &self.store.ledger;
        ledger.execute(RecordKind::Extents, &body, |table| record::apply(&body, table))?;
        let sequence = ledger.position();
        let view = self.unit.inode.view();
        let replaced: u64 = std::mem::take(&mut self.taken).into_iter().map(|(_, replaced)| replaced).sum();
        let freed = std::mem::take(&mut self.freed);
        {
            let books = &mut *self.store.books.lock();
            books.unuse(view, count(&freed) - replaced);
            books.retire(sequence, freed);
            books.count_dirty(view, self.before.dirty.len(), self.record.dirty.len());
            if self.unit.inode.is_cached() {
                books.touch(self.unit, kept_clean(&self.record));
            }
        }
        self.store.space_appeared.notify(usize::MAX);
        self.store.schedule_reclaim();
        Ok(())
    }
}

fn kept_clean(record: &UnitRecord) -> bool {
    !record.held.is_empty() && record.is_clean()
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let books = &mut *self.store.books.lock();
        for (runs, replaced) in self.taken.drain(..) {
            books.untake(self.unit.inode.view(), runs, replaced);
        }
    }
}
