//! Extent locations of a file's units: where other agents of this host store them on their devices.
//!
//! A location replaces a read: it gives the position of a unit's bytes at its home, for a unit of which this node caches nothing. Like
//! cached data, locations are invalidated when another node may have changed the file, and by each write of this node.

use super::mark::Mark;
use super::{FileData, FileState};
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::Generation;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{LOCATIONS_MAX, UnitLocation};

/// Units ahead of a sequential reader whose locations are requested. A request goes out when any in the first half are missing, so that one
/// message carries several.
const AHEAD: u64 = LOCATIONS_MAX as u64;
/// Limit on a file's kept locations; those farthest from the last read are dropped first.
const KEPT_MAX: usize = 4 * LOCATIONS_MAX;

/// Known locations of a file's units.
#[derive(Default)]
pub(super) struct ExtentLocations {
    /// The cache state for which they are valid.
    mark: Mark,
    units: BTreeMap<u64, Location>,
}

enum Location {
    /// A request is in flight.
    Requested,
    At(Arc<UnitLocation>),
    /// The unit has no location, or programs cannot read it there. Valid for one read.
    Unavailable,
}

/// Next step of a read.
pub(in crate::data) enum LocationPlan {
    /// Read without a location.
    Read,
    /// Read at this location; also send the request for locations of other units, if it has any.
    Known(Arc<UnitLocation>, LocationRequest),
    /// Request locations.
    Request(LocationRequest),
    /// Wait for the request in flight.
    Wait,
}

/// Units whose locations are marked as requested. Dropping it clears the marks that got no answer, and wakes the readers that wait for the
/// units.
pub(in crate::data) struct LocationRequest {
    file: Arc<FileData>,
    mark: Mark,
    generation: Generation,
    units: Vec<u64>,
}

impl LocationRequest {
    pub(in crate::data) fn file(&self) -> &Arc<FileData> {
        &self.file
    }

    pub(in crate::data) fn generation(&self) -> Generation {
        self.generation
    }

    pub(in crate::data) fn units(&self) -> &[u64] {
        &self.units
    }

    /// Splits off the units that fit into a request of their own.
    pub(in crate::data) fn split_off(&mut self, fits: impl Fn(u64) -> bool) -> Self {
        let (units, others) = self.units.iter().copied().partition(|index| fits(*index));
        self.units = others;
        Self { file: self.file.clone(), mark: self.mark, generation: self.generation, units }
    }

    /// Records the answer, which is ignored unless it covers all units.
    pub(in crate::data) fn learn(self, answer: Vec<Option<UnitLocation>>) {
        let mut state = self.file.state.lock();
        if state.locations.mark != self.mark {
            return;
        }
        let mut answer = if answer.len() == self.units.len() { answer } else { Vec::new() }.into_iter();
        for index in &self.units {
            let location = answer.next().flatten().filter(UnitLocation::is_whole);
            let known = location.map_or(Location::Unavailable, |location| Location::At(Arc::new(location)));
            state.locations.units.insert(*index, known);
        }
    }
}

impl Drop for LocationRequest {
    fn drop(&mut self) {
        if self.units.is_empty() {
            return;
        }
        {
            let locations = &mut self.file.state.lock().locations;
            if locations.mark == self.mark {
                locations.units.retain(|index, known| {
                    !(matches!(known, Location::Requested) && self.units.contains(index))
                });
            }
        }
        self.file.changed.notify(usize::MAX);
    }
}

impl FileState {
    /// Returns true if the home may have all of the unit and this node caches none of it.
    fn could_be_located(&self, index: u64) -> bool {
        let end = (index + 1).checked_mul(UNIT_SIZE as u64);
        let is_whole = end.is_some_and(|end| end <= self.content.size());
        is_whole && self.units.is_absent(index)
    }

    fn is_to_be_requested(&self, index: u64) -> bool {
        !self.locations.units.contains_key(&index) && self.could_be_located(index)
    }
}

impl FileData {
    /// Returns the next step to locate a read of `length` bytes at `offset`, all in one unit.
    pub(in crate::data) fn plan_location(
        self: &Arc<Self>,
        index: u64,
        (offset, length): (u64, u32),
        is_sequential: Option<bool>,
    ) -> LocationPlan {
        let state = &mut *self.state.lock();
        let is_elsewhere = state.content.is_inline() || !state.could_be_located(index);
        if is_elsewhere || offset + u64::from(length) > state.content.size() {
            return LocationPlan::Read;
        }
        let mark = state.mark();
        if state.locations.mark != mark {
            state.locations = ExtentLocations { mark, units: BTreeMap::new() };
        }
        let location = match state.locations.units.get(&index) {
            Some(Location::Requested) => return LocationPlan::Wait,
            Some(Location::Unavailable) => {
                state.locations.units.remove(&index);
                return LocationPlan::Read;
            }
            Some(Location::At(location)) => Some(location.clone()),
            None => None,
        };
        let is_sequential = match (is_sequential, &location) {
            (Some(is_sequential), _) => is_sequential,
            (None, Some(_)) => state.streams.read(offset, length.into()),
            // The read is planned again after the answer, which then records the stream.
            (None, None) => state.streams.goes_on(offset, length.into()),
        };
        let mut units = Vec::new();
        if location.is_none() {
            units.push(index);
        }
        if is_sequential && (index + 1..=index + AHEAD / 2).any(|index| state.is_to_be_requested(index)) {
            units.extend((index + 1..=index + AHEAD).filter(|index| state.is_to_be_requested(*index)));
        }
        state.locations.mark_requested(&units, index);
        let generation = state.content.generation();
        let request = LocationRequest { file: self.clone(), mark, generation, units };
        match location {
            Some(location) => LocationPlan::Known(location, request),
            None => LocationPlan::Request(request),
        }
    }

    /// Drops the location of the unit at `offset`, which was stale.
    pub fn drop_location(&self, offset: u64) {
        let index = offset / UNIT_SIZE as u64;
        let units = &mut self.state.lock().locations.units;
        if matches!(units.get(&index), Some(Location::At(_))) {
            units.remove(&index);
        }
    }
}

impl ExtentLocations {
    /// Marks units as requested by a reader in the unit `near`.
    fn mark_requested(&mut self, units: &[u64], near: u64) {
        while self.units.len() + units.len() > KEPT_MAX {
            let known = self.units.iter().filter(|(_, known)| !matches!(known, Location::Requested));
            let Some(farthest) = known.map(|(index, _)| *index).max_by_key(|index| index.abs_diff(near))
            else {
                break;
            };
            self.units.remove(&farthest);
        }
        self.units.extend(units.iter().map(|index| (*index, Location::Requested)));
    }
}
