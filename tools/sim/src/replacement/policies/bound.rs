//! Belady's: what is used again latest goes.

use super::{Policy, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Units by their next use.
#[derive(Default)]
pub struct Bound {
    by_next: BTreeSet<(usize, Unit)>,
    next: BTreeMap<Unit, usize>,
}

impl Policy for Bound {
    fn insert(&mut self, unit: Unit, next: usize) {
        self.remove(unit);
        self.by_next.insert((next, unit));
        self.next.insert(unit, next);
    }

    fn hit(&mut self, unit: Unit, next: usize) {
        self.insert(unit, next);
    }

    fn evict(&mut self) -> Option<Unit> {
        let (_, unit) = self.by_next.pop_last()?;
        self.next.remove(&unit);
        Some(unit)
    }

    /// It does as if the unit was used soon.
    fn spare(&mut self, unit: Unit) {
        self.insert(unit, 0);
    }

    fn remove(&mut self, unit: Unit) {
        if let Some(next) = self.next.remove(&unit) {
            self.by_next.remove(&(next, unit));
        }
    }
}
