//! Fetches of units in flight: one per unit at a time, and other readers of the unit wait for its end.

use super::unit::UnitFrame;
use super::{FileData, FileState};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{Generation, UnitId};
use tameike_io::Payload;

/// In so many pieces of a unit it is fetched by random reads; with the next one it is fetched whole.
const PIECES_DENSE: usize = 8;

/// Of what the node stores itself, units are kept that a sequential reader reads in steps of so many bytes at most.
const STEP_KEPT_MAX: usize = UNIT_SIZE / 16;

/// Marks a unit as being fetched. Dropping it clears the mark and wakes the readers that wait for the unit.
pub(in crate::data) struct FetchInFlight {
    file: Arc<FileData>,
    index: u64,
    /// Bytes of the unit that are fetched.
    range: Range<u32>,
    /// Cache epoch of the file when the fetch began: what it brings is not cached in a later one.
    epoch: u64,
    /// Version of the file that is fetched.
    generation: Generation,
}

/// What a read needs next.
pub(in crate::data) enum ReadPlan {
    /// The bytes are here.
    Ready(Payload),
    /// Bytes of the unit are to be fetched. Where there is no frame to keep them in, this node's own store may also be read as
    /// with `Direct`.
    Fetch { fetch: FetchInFlight, or_direct: bool },
    /// As `Fetch`, from this node's own store: served without keeping a copy.
    Direct { generation: Generation },
    /// The inline content is to be fetched.
    Content,
    /// A fetch of the unit is in flight.
    Wait,
}

impl FetchInFlight {
    /// Marks a unit of `file`, whose state this is.
    fn begin(file: &Arc<FileData>, state: &mut FileState, index: u64, range: Range<u32>) -> Self {
        state.units.begin_fetch(index);
        let (epoch, generation) = (state.units.epoch(), state.content.generation());
        Self { file: file.clone(), index, range, epoch, generation }
    }

    /// The unit.
    pub(in crate::data) fn unit(&self) -> UnitId {
        UnitId { inode: self.file.inode, index: self.index }
    }

    /// Bytes of the unit that are fetched.
    pub(in crate::data) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Version of the file that is fetched.
    pub(in crate::data) fn generation(&self) -> Generation {
        self.generation
    }

    /// Caches the fetched bytes where the unit holds none yet, unless the cache was invalidated meanwhile. `enter` gives an
    /// entry of an eviction queue to a unit that they have brought into memory.
    pub(in crate::data) fn cache(
        &self,
        fetched: Payload,
        is_elsewhere: bool,
        enter: impl FnOnce(&mut UnitFrame),
    ) {
        let mut state = self.file.state.lock();
        if state.units.epoch() != self.epoch {
            return;
        }
        if let Some(unit) = state.units.put_fetched(self.index, self.range(), fetched, is_elsewhere) {
            enter(unit);
            unit.set_elsewhere(is_elsewhere);
        }
    }
}

impl Drop for FetchInFlight {
    fn drop(&mut self) {
        self.file.state.lock().units.end_fetch(self.index);
        self.file.changed.notify(usize::MAX);
    }
}

impl FileData {
    /// A program reads `length` bytes at `offset`: how many of them the file has, and whether the reader is sequential.
    pub(in crate::data) fn begin_read(&self, offset: u64, length: u32) -> (u64, bool) {
        let mut state = self.state.lock();
        let length = u64::from(length).min(state.content.size().saturating_sub(offset));
        (length, state.streams.read(offset, length))
    }

    /// What a read of `range` in a unit needs next. `is_local` says whether this node is the unit's home.
    pub(in crate::data) fn plan_read(
        self: &Arc<Self>,
        unit: UnitId,
        range: &Range<u32>,
        is_sequential: bool,
        is_local: bool,
    ) -> ReadPlan {
        let mut state = self.state.lock();
        if let Some(held) = state.units.get_mut(unit.index)
            && held.valid().contains(range)
        {
            held.used(range);
            return ReadPlan::Ready(held.payload(range.clone()));
        }
        if state.units.is_fetching(unit.index) {
            return ReadPlan::Wait;
        }
        if state.content.lacks_inline() {
            return ReadPlan::Content;
        }
        let wanted = state.fetch_range(unit, range, is_sequential);
        // A sequential reader in small steps reads in memory. A kernel that reads ahead sends large requests at the same time:
        // one would wait for another.
        let is_kept = is_sequential && range.len() <= STEP_KEPT_MAX && wanted != *range;
        let is_all_there = is_local && !state.content.is_inline() && !state.units.contains(unit.index);
        if is_all_there && !is_kept {
            return ReadPlan::Direct { generation: state.content.generation() };
        }
        let fetch = FetchInFlight::begin(self, &mut state, unit.index, wanted);
        ReadPlan::Fetch { fetch, or_direct: is_all_there }
    }

    /// Begins a fetch of a whole unit ahead of a sequential reader, unless the unit is here or the file has none of it.
    pub(in crate::data) fn plan_ahead(self: &Arc<Self>, unit: UnitId) -> Option<FetchInFlight> {
        let mut state = self.state.lock();
        if !state.units.is_absent(unit.index)
            || unit.start() >= state.content.size()
            || state.content.is_inline()
        {
            return None;
        }
        let range = state.fetch_range(unit, &(0..1), true);
        Some(FetchInFlight::begin(self, &mut state, unit.index, range))
    }
}

impl FileState {
    /// The bytes to fetch for a read of `range`: all that the file has of the unit for a sequential reader, and where random
    /// reads have fetched much of it; else whole blocks.
    fn fetch_range(&self, unit: UnitId, range: &Range<u32>, is_sequential: bool) -> Range<u32> {
        let in_file = self.content.size().saturating_sub(unit.start()).min(UNIT_SIZE as u64) as u32;
        let end = in_file.max(range.end);
        let is_dense = self.units.get(unit.index).is_some_and(|held| held.valid().count() >= PIECES_DENSE);
        if is_sequential || is_dense || self.content.is_inline() {
            return 0..end;
        }
        let block = BLOCK_SIZE as u32;
        range.start / block * block..range.end.next_multiple_of(block).min(end)
    }
}
