//! Extent locations of a file's units: where other agents of this host have them on their devices.
//!
//! A location stands for what a read would bring: it says where the unit's home has the bytes of a unit of which this node has none.
//! As what is cached of the file, it is given up when another node may have changed the file, and with each write of this node.

use super::mark::Mark;
use super::{FileData, FileState};
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::Generation;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{LOCATIONS_MAX, UnitLocation};

/// Units behind the one that is read whose locations a sequential reader is to know. New ones are requested by the half of them, so
/// that a message has several.
const AHEAD: u64 = LOCATIONS_MAX as u64;
/// Units of one file whose locations are kept, those nearest to where it was read last.
const KEPT_MAX: usize = 4 * LOCATIONS_MAX;

/// What is known of the locations of a file's units.
#[derive(Default)]
pub(super) struct ExtentLocations {
    /// Under which state of the cache.
    mark: Mark,
    units: BTreeMap<u64, Known>,
}

enum Known {
    /// A request is in flight.
    Requested,
    /// There.
    At(Arc<UnitLocation>),
    /// Nowhere, or where no program can read it. Valid for one read.
    Nowhere,
}

/// What a read needs next.
pub(in crate::data) enum LocationPlan {
    /// The bytes are to be read without a location.
    Read,
    /// The bytes lie there; locations of other units are to be requested.
    There(Arc<UnitLocation>, LocationRequest),
    /// Locations are to be requested.
    Request(LocationRequest),
    /// A request for the location is in flight.
    Wait,
}

/// Units whose locations are marked as requested. Dropping it clears the marks of those that were not learnt, and wakes the readers
/// that wait for them.
pub(in crate::data) struct LocationRequest {
    file: Arc<FileData>,
    mark: Mark,
    generation: Generation,
    units: Vec<u64>,
}

impl LocationRequest {
    /// The file.
    pub(in crate::data) fn file(&self) -> &Arc<FileData> {
        &self.file
    }

    /// Version of the file whose locations are requested.
    pub(in crate::data) fn generation(&self) -> Generation {
        self.generation
    }

    /// The units.
    pub(in crate::data) fn units(&self) -> &[u64] {
        &self.units
    }

    /// Takes those units out that fit, as a request of their own.
    pub(in crate::data) fn split_off(&mut self, fits: impl Fn(u64) -> bool) -> Self {
        let (units, others) = self.units.iter().copied().partition(|index| fits(*index));
        self.units = others;
        Self { file: self.file.clone(), mark: self.mark, generation: self.generation, units }
    }

    /// Takes note of the answer, which has all units or none.
    pub(in crate::data) fn learn(self, answer: Vec<Option<UnitLocation>>) {
        let mut state = self.file.state.lock();
        if state.locations.mark != self.mark {
            return;
        }
        let mut answer = if answer.len() == self.units.len() { answer } else { Vec::new() }.into_iter();
        for index in &self.units {
            let place = answer.next().flatten().filter(UnitLocation::is_whole);
            let known = place.map_or(Known::Nowhere, |place| Known::At(Arc::new(place)));
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
                    !(matches!(known, Known::Requested) && self.units.contains(index))
                });
            }
        }
        self.file.changed.notify(usize::MAX);
    }
}

impl FileState {
    /// Whether all of the unit may be at its home, and none of it is here.
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
    /// What a read of `length` bytes at `offset`, all in one unit, needs next to know where they lie.
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
        let place = match state.locations.units.get(&index) {
            Some(Known::Requested) => return LocationPlan::Wait,
            Some(Known::Nowhere) => {
                state.locations.units.remove(&index);
                return LocationPlan::Read;
            }
            Some(Known::At(place)) => Some(place.clone()),
            None => None,
        };
        let is_sequential = match (is_sequential, &place) {
            (Some(is_sequential), _) => is_sequential,
            (None, Some(_)) => state.streams.read(offset, length.into()),
            // The read is planned once more.
            (None, None) => state.streams.goes_on(offset, length.into()),
        };
        let mut units = Vec::new();
        if place.is_none() {
            units.push(index);
        }
        if is_sequential && (index + 1..=index + AHEAD / 2).any(|index| state.is_to_be_requested(index)) {
            units.extend((index + 1..=index + AHEAD).filter(|index| state.is_to_be_requested(*index)));
        }
        state.locations.mark_requested(&units, index);
        let generation = state.content.generation();
        let request = LocationRequest { file: self.clone(), mark, generation, units };
        match place {
            Some(place) => LocationPlan::There(place, request),
            None => LocationPlan::Request(request),
        }
    }

    /// The bytes at `offset` were not at their unit's known location.
    pub fn drop_location(&self, offset: u64) {
        let index = offset / UNIT_SIZE as u64;
        let units = &mut self.state.lock().locations.units;
        if matches!(units.get(&index), Some(Known::At(_))) {
            units.remove(&index);
        }
    }
}

impl ExtentLocations {
    /// Takes note of what is requested, by a reader in the unit `near`.
    fn mark_requested(&mut self, units: &[u64], near: u64) {
        while self.units.len() + units.len() > KEPT_MAX {
            let known = self.units.iter().filter(|(_, known)| !matches!(known, Known::Requested));
            let Some(farthest) = known.map(|(index, _)| *index).max_by_key(|index| index.abs_diff(near))
            else {
                break;
            };
            self.units.remove(&farthest);
        }
        self.units.extend(units.iter().map(|index| (*index, Known::Requested)));
    }
}
