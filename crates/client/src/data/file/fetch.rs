//! Fetches of units in flight. One fetch per unit runs at a time; other readers of the unit wait for it.

use super::unit::UnitFrame;
use super::{FileData, FileState};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{Generation, UnitId};
use tameike_io::Payload;

/// Pieces that random reads fetch of a unit before the next read fetches it whole.
const PIECES_DENSE: usize = 8;

/// Largest step of a sequential reader for which the node caches units of its own store.
const STEP_KEPT_MAX: usize = UNIT_SIZE / 16;

/// A fetch of a unit in flight. Dropping it ends the fetch and wakes the readers that wait for the unit.
pub(in crate::data) struct FetchInFlight {
    file: Arc<FileData>,
    index: u64,
    /// Bytes of the unit to fetch.
    range: Range<u32>,
    /// Cache epoch of the file when the fetch began: bytes from an earlier epoch are not cached.
    epoch: u64,
    /// Version of the file to fetch.
    generation: Generation,
}

/// Next step of a read.
pub(in crate::data) enum ReadPlan {
    /// The bytes are in memory.
    Ready(Payload),
    /// Fetch bytes of the unit. If no frame is free and this node's own store has them, `or_direct` permits the read without a copy.
    Fetch { fetch: FetchInFlight, or_direct: bool },
    /// Read from this node's own store, without keeping a copy.
    Direct { generation: Generation },
    /// Fetch the inline content.
    Content,
    /// Wait for the fetch of the unit in flight.
    Wait,
}

impl FetchInFlight {
    /// Begins a fetch of a unit of `file`, whose locked state is `state`.
    fn begin(file: &Arc<FileData>, state: &mut FileState, index: u64, range: Range<u32>) -> Self {
        state.units.begin_fetch(index);
        let (epoch, generation) = (state.units.epoch(), state.content.generation());
        Self { file: file.clone(), index, range, epoch, generation }
    }

    pub(in crate::data) fn unit(&self) -> UnitId {
        UnitId { inode: self.file.inode, index: self.index }
    }

    pub(in crate::data) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    pub(in crate::data) fn generation(&self) -> Generation {
        self.generation
    }

    /// Caches the fetched bytes that the unit lacks, unless the cache was invalidated meanwhile. `enter` adds a unit that came into memory
    /// to an eviction queue.
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
    /// Records a read of `length` bytes at `offset`. Returns the number of them before the end of the file, and true for a sequential
    /// reader.
    pub(in crate::data) fn begin_read(&self, offset: u64, length: u32) -> (u64, bool) {
        let mut state = self.state.lock();
        let length = u64::from(length).min(state.content.size().saturating_sub(offset));
        (length, state.streams.read(offset, length))
    }

    /// Returns the next step for a read of `range` in a unit. `is_local` is true if this node is the unit's home.
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
        // Only small sequential steps use the cache. A kernel with readahead sends large requests concurrently, and they would wait for
        // each other here.
        let is_kept = is_sequential && range.len() <= STEP_KEPT_MAX && wanted != *range;
        let is_all_there = is_local && !state.content.is_inline() && !state.units.contains(unit.index);
        if is_all_there && !is_kept {
            return ReadPlan::Direct { generation: state.content.generation() };
        }
        let fetch = FetchInFlight::begin(self, &mut state, unit.index, wanted);
        ReadPlan::Fetch { fetch, or_direct: is_all_there }
    }

    /// Begins a readahead fetch of a whole unit, unless the unit is in memory or beyond the end of the file.
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
    /// Returns the bytes to fetch for a read of `range`: the whole unit up to the end of the file for a sequential reader or a densely read
    /// unit, otherwise whole blocks.
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
