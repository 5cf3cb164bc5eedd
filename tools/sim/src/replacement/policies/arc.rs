//! ARC: what was used once and what was used again share the memory by how often the names of what each let go come again.

use super::order::Order;
use super::{Policy, Unit};

/// Two lists and the names that each let go.
pub struct Arc {
    capacity: usize,
    /// Part of the memory for what was used once.
    target: usize,
    once: Order,
    again: Order,
    once_names: Order,
    again_names: Order,
}

impl Arc {
    /// For so many units.
    pub fn new(capacity: usize) -> Self {
        let (target, once, again, once_names, again_names) = Default::default();
        Self { capacity, target, once, again, once_names, again_names }
    }
}

impl Policy for Arc {
    fn insert(&mut self, unit: Unit, _: usize) {
        let (once, again) = (self.once_names.len().max(1), self.again_names.len().max(1));
        if self.once_names.remove(unit) {
            self.target = (self.target + (again / once).max(1)).min(self.capacity);
            self.again.push(unit);
        } else if self.again_names.remove(unit) {
            self.target = self.target.saturating_sub((once / again).max(1));
            self.again.push(unit);
        } else {
            self.once.push(unit);
        }
        while self.once.len() + self.once_names.len() > self.capacity && self.once_names.pop().is_some() {}
        while self.once_names.len() + self.again_names.len() > self.capacity
            && self.again_names.pop().is_some()
        {}
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        self.once.remove(unit);
        self.again.push(unit);
    }

    fn evict(&mut self) -> Option<Unit> {
        let from_once = self.once.len() > self.target.max(1) || self.again.len() == 0;
        let (list, names) = if from_once {
            (&mut self.once, &mut self.once_names)
        } else {
            (&mut self.again, &mut self.again_names)
        };
        let unit = list.pop()?;
        names.push(unit);
        Some(unit)
    }

    fn spare(&mut self, unit: Unit) {
        self.once_names.remove(unit);
        self.again_names.remove(unit);
        self.again.push(unit);
    }

    fn remove(&mut self, unit: Unit) {
        self.once.remove(unit);
        self.again.remove(unit);
    }
}
