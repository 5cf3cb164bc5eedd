//! Units in an order, of which any may leave.

use super::Unit;
use std::collections::BTreeMap;

/// Units, the one that came last at the end.
#[derive(Default)]
pub struct Order {
    clock: u64,
    by_place: BTreeMap<u64, Unit>,
    places: BTreeMap<Unit, u64>,
}

impl Order {
    /// Puts a unit at the end, wherever it was.
    pub fn push(&mut self, unit: Unit) {
        self.remove(unit);
        self.clock += 1;
        self.by_place.insert(self.clock, unit);
        self.places.insert(unit, self.clock);
    }

    /// Takes a unit out; whether it was there.
    pub fn remove(&mut self, unit: Unit) -> bool {
        let place = self.places.remove(&unit);
        place.is_some_and(|place| self.by_place.remove(&place).is_some())
    }

    /// Takes the first one out.
    pub fn pop(&mut self) -> Option<Unit> {
        let (_, unit) = self.by_place.pop_first()?;
        self.places.remove(&unit);
        Some(unit)
    }

    /// The first one at `place` or after it, and its place.
    pub fn from(&self, place: u64) -> Option<(u64, Unit)> {
        self.by_place.range(place..).next().map(|(&place, &unit)| (place, unit))
    }

    /// Whether a unit is there.
    pub fn contains(&self, unit: Unit) -> bool {
        self.places.contains_key(&unit)
    }

    /// Number of units.
    pub fn len(&self) -> usize {
        self.places.len()
    }
}
