//! 2Q: what is new goes through a queue of a quarter of the memory; what comes again while its name is known is kept by last use.

use super::order::Order;
use super::{Policy, Unit};

/// The three queues of the full version.
pub struct TwoQueue {
    new_target: usize,
    names_max: usize,
    new: Order,
    names: Order,
    kept: Order,
}

impl TwoQueue {
    /// With the published parts: a quarter for what is new, the names of half as many units as there is room for.
    pub fn new(capacity: usize) -> Self {
        let (new, names, kept) = Default::default();
        Self { new_target: (capacity / 4).max(1), names_max: (capacity / 2).max(1), new, names, kept }
    }
}

impl Policy for TwoQueue {
    fn insert(&mut self, unit: Unit, _: usize) {
        let queue = if self.names.remove(unit) { &mut self.kept } else { &mut self.new };
        queue.push(unit);
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        if self.kept.contains(unit) {
            self.kept.push(unit);
        }
    }

    fn evict(&mut self) -> Option<Unit> {
        if self.new.len() < self.new_target
            && let Some(unit) = self.kept.pop()
        {
            return Some(unit);
        }
        let Some(unit) = self.new.pop() else { return self.kept.pop() };
        self.names.push(unit);
        if self.names.len() > self.names_max {
            self.names.pop();
        }
        Some(unit)
    }

    fn spare(&mut self, unit: Unit) {
        self.names.remove(unit);
        self.kept.push(unit);
    }

    fn remove(&mut self, unit: Unit) {
        self.new.remove(unit);
        self.kept.remove(unit);
    }
}
