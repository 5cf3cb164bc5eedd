//! Cache of a file's units: those in memory, the fetches in flight, and the cache epoch.

use super::FileData;
use super::queue_entry::QueueEntry;
use super::unit::{UnitFrame, frame_of};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{PIECES_MAX, UNIT_SIZE};
use tameike_core::{Generation, UnitId};
use tameike_io::{Frame, Payload};

const UNIT: u64 = UNIT_SIZE as u64;

/// Units of one file in memory.
#[derive(Default)]
pub(super) struct UnitCache {
    units: BTreeMap<u64, UnitFrame>,
    /// Units with a fetch in flight.
    fetching: BTreeSet<u64>,
    /// Number of invalidations: bytes requested before the last one are not cached.
    epoch: u64,
}

impl UnitCache {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn get(&self, index: u64) -> Option<&UnitFrame> {
        self.units.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: u64) -> Option<&mut UnitFrame> {
        self.units.get_mut(&index)
    }

    pub(super) fn contains(&self, index: u64) -> bool {
        self.units.contains_key(&index)
    }

    pub(super) fn is_fetching(&self, index: u64) -> bool {
        self.fetching.contains(&index)
    }

    /// Returns true if no bytes of the unit are in memory and no fetch of it is in flight.
    pub(super) fn is_absent(&self, index: u64) -> bool {
        !self.contains(index) && !self.is_fetching(index)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.fetching.is_empty()
    }

    /// Returns true if no unit has bytes that its home lacks.
    pub(super) fn is_clean(&self) -> bool {
        self.units.values().all(UnitFrame::is_clean)
    }

    pub(super) fn begin_fetch(&mut self, index: u64) {
        self.fetching.insert(index);
    }

    pub(super) fn end_fetch(&mut self, index: u64) {
        self.fetching.remove(&index);
    }

    /// Invalidates a fetch of the unit in flight after bytes were dropped: it may have read the home before those bytes arrived there.
    pub(super) fn dropped(&mut self, index: u64) {
        if self.is_fetching(index) {
            self.epoch += 1;
        }
    }

    pub(super) fn remove(&mut self, index: u64) {
        self.units.remove(&index);
        self.dropped(index);
    }

    /// Adds a unit with bytes of its home.
    pub(super) fn insert(&mut self, index: u64, frame: Frame, fetched: Range<u32>) -> &mut UnitFrame {
        let mut unit = UnitFrame::new(frame);
        unit.fetched(fetched);
        match self.units.entry(index) {
            Entry::Occupied(mut entry) => {
                entry.insert(unit);
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(unit),
        }
    }

    pub(super) fn drop_clean(&mut self) {
        self.epoch += 1;
        self.units.retain(|_, unit| {
            unit.drop_clean();
            !unit.is_clean()
        });
    }

    /// Drops all bytes at and after `size`.
    pub(super) fn truncate(&mut self, size: u64) {
        self.epoch += 1;
        self.units.retain(|index, unit| {
            let start = index * UNIT;
            let keep = size.saturating_sub(start).min(UNIT) as u32;
            unit.forget(keep..UNIT_SIZE as u32);
            !(unit.valid().is_empty() && unit.is_clean())
        });
    }

    pub(super) fn punch(&mut self, bytes: &Range<u64>) {
        self.epoch += 1;
        let units = bytes.start / UNIT..bytes.end.div_ceil(UNIT);
        let touched: Vec<u64> = self.units.range(units).map(|(index, _)| *index).collect();
        for index in touched {
            let start = index * UNIT;
            let within = |offset: u64| (offset.clamp(start, start + UNIT) - start) as u32;
            let range = within(bytes.start)..within(bytes.end);
            if let Some(unit) = self.units.get_mut(&index) {
                unit.forget(range);
                if unit.valid().is_empty() && unit.is_clean() {
                    self.units.remove(&index);
                }
            }
        }
    }

    /// Writes bytes of write number `write` into the unit's frame with `copy`; returns `false` if it first needs a spare frame.
    pub(super) fn put_bytes(
        &mut self,
        (index, range): (u64, &Range<u32>),
        write: u64,
        copy: impl Fn(&mut [u8]),
        spare: &mut Option<Frame>,
    ) -> bool {
        let unit = match self.units.entry(index) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match spare.take() {
                Some(frame) => entry.insert(UnitFrame::new(frame)),
                None => return false,
            },
        };
        let mut is_damaged = false;
        if !unit.is_own() {
            let Some(frame) = spare.take() else { return false };
            is_damaged |= unit.replace_frame(frame);
        }
        is_damaged |= unit.forget_damaged(range);
        let is_written = unit.write(range.clone(), write, copy);
        if is_damaged {
            self.dropped(index);
        }
        is_written
    }

    /// Gives the unit a frame that write number `write` has filled.
    pub(super) fn put_frame(&mut self, index: u64, write: u64, frame: Frame) {
        let unit = match self.units.entry(index) {
            Entry::Occupied(entry) => {
                let unit = entry.into_mut();
                unit.exchange_frame(frame);
                unit
            }
            Entry::Vacant(entry) => entry.insert(UnitFrame::new(frame)),
        };
        unit.filled(write);
    }

    /// Caches fetched bytes that the unit lacks. Returns the unit if they brought it into memory.
    pub(super) fn put_fetched(
        &mut self,
        index: u64,
        range: Range<u32>,
        fetched: Payload,
        is_elsewhere: bool,
    ) -> Option<&mut UnitFrame> {
        if let Some(unit) = self.units.get_mut(&index)
            && unit.is_own()
        {
            unit.set_elsewhere(is_elsewhere);
            if unit.fill(&range, &fetched) {
                self.dropped(index);
            }
            return None;
        }
        // The unit's frame is shared or missing, so the unit takes over the fetched frame. Waiting for another frame might never end if
        // none is free.
        let frame = frame_of(fetched, &range)?;
        let Some(unit) = self.units.get_mut(&index) else { return Some(self.insert(index, frame, range)) };
        let is_damaged = unit.replace_frame(frame);
        if !is_damaged {
            unit.fetched(range);
        }
        unit.set_elsewhere(is_elsewhere);
        if is_damaged {
            self.dropped(index);
        }
        None
    }

    /// Returns the units whose homes lack bytes of write number `last` or an earlier one.
    pub(super) fn held_back(&self, last: u64) -> Vec<u64> {
        let units = self.units.iter().filter(|(_, unit)| unit.holds_back(last));
        units.map(|(&index, _)| index).collect()
    }

    /// Ends a send of the unit. Drops its clean bytes if its memory is `wanted` or it has too many pieces.
    pub(super) fn release_sent(&mut self, index: u64, wanted: bool) {
        let Some(unit) = self.units.get_mut(&index) else { return };
        // Tracking many pieces costs more than the cached bytes are worth.
        let is_scattered = unit.valid().count() > PIECES_MAX;
        if is_scattered || (wanted && unit.is_clean()) {
            unit.keep_dirty();
            if unit.is_clean() {
                self.units.remove(&index);
            }
            self.dropped(index);
        }
    }
}

/// Outcome of an eviction.
pub(in crate::data) enum Evicted {
    /// The unit has left memory.
    Now,
    /// The unit had left memory before.
    Before,
    /// The unit has bytes that its home lacks.
    Dirty,
}

/// Reply to a peer request.
pub(in crate::data) enum Served {
    Bytes(Payload),
    /// This node does not have the bytes in this version as the home has them.
    NotHeld,
    /// This node has the bytes but must not send them now.
    Busy,
}

/// Bytes of one version that are in memory as their home has them.
pub struct AtRest {
    /// Unit that contains the bytes.
    pub unit: UnitId,
    /// Version of the file.
    pub generation: Generation,
    /// The bytes, with their range in the unit.
    pub bytes: Payload,
}

impl FileData {
    pub(in crate::data) fn bytes_in_memory(&self) -> u64 {
        let state = self.state.lock();
        state.units.units.values().map(|unit| u64::from(unit.valid().len())).sum()
    }

    /// Drops the unit if it is clean and its queue entry is `entry`.
    pub(in crate::data) fn evict(&self, index: u64, entry: &Arc<QueueEntry>) -> Evicted {
        let units = &mut self.state.lock().units;
        match units.get(index).filter(|unit| unit.is_queued_as(entry)) {
            None => Evicted::Before,
            Some(unit) if !unit.is_clean() => Evicted::Dirty,
            Some(_) => {
                units.remove(index);
                Evicted::Now
            }
        }
    }

    /// Returns bytes of a unit to another node, if they are in memory in this version as the home has them. `admit` gets the number of
    /// readers of the frame and the bytes.
    pub(in crate::data) fn serve_peer(
        &self,
        index: u64,
        range: &Range<u32>,
        generation: Generation,
        admit: impl FnOnce(usize, Payload) -> Option<Payload>,
    ) -> Served {
        let state = self.state.lock();
        let is_version = state.content.generation() == generation;
        let unit = state.units.get(index).filter(|unit| is_version && unit.is_at_home(range));
        let Some(unit) = unit else { return Served::NotHeld };
        match admit(unit.readers(), unit.payload(range.clone())) {
            Some(bytes) => {
                unit.set_elsewhere(true);
                Served::Bytes(bytes)
            }
            None => Served::Busy,
        }
    }

    /// Drops a unit whose bytes failed their checksum, if it is clean.
    pub(in crate::data) fn drop_damaged(&self, index: u64) {
        let units = &mut self.state.lock().units;
        if units.get(index).is_some_and(UnitFrame::is_clean) {
            units.remove(index);
        }
    }

    pub(in crate::data) fn collect_at_rest(&self, found: &mut Vec<AtRest>) {
        let state = self.state.lock();
        let generation = state.content.generation();
        for (&index, held) in state.units.units.iter().filter(|(_, held)| held.is_clean()) {
            let unit = UnitId { inode: self.inode, index };
            let bytes = held.valid().iter().map(|range| held.payload(range));
            found.extend(bytes.map(|bytes| AtRest { unit, generation, bytes }));
        }
    }

    /// Number of unsent blocks of `st_blocks`.
    pub fn unsent_blocks(&self) -> u64 {
        self.state.lock().units.units.values().map(UnitFrame::unsent_blocks).sum()
    }

    #[cfg(test)]
    pub(in crate::data) fn has_unit(&self, index: u64) -> bool {
        self.state.lock().units.contains(index)
    }

    #[cfg(test)]
    pub(in crate::data) fn is_fetching(&self, index: u64) -> bool {
        self.state.lock().units.is_fetching(index)
    }

    #[cfg(test)]
    pub(in crate::data) fn unit_count(&self) -> usize {
        self.state.lock().units.units.len()
    }

    #[cfg(test)]
    pub(in crate::data) fn unit_bytes(&self, index: u64, range: Range<u32>) -> Payload {
        self.state.lock().units.units[&index].payload(range)
    }

    #[cfg(test)]
    pub(in crate::data) fn unsent_pieces(&self, index: u64) -> usize {
        self.state.lock().units.units[&index].unsent_pieces()
    }

    /// Records a read of these bytes in all units in memory.
    #[cfg(test)]
    pub(in crate::data) fn use_units(&self, range: &Range<u32>) {
        self.state.lock().units.units.values_mut().for_each(|unit| unit.used(range));
    }
}
