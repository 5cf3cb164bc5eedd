//! Least recently used.

use super::order::Order;
use super::{Policy, Unit};

/// Units by last use.
#[derive(Default)]
pub struct Lru(Order);

impl Policy for Lru {
    fn insert(&mut self, unit: Unit, _: usize) {
        self.0.push(unit);
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        self.0.push(unit);
    }

    fn evict(&mut self) -> Option<Unit> {
        self.0.pop()
    }

    fn spare(&mut self, unit: Unit) {
        self.0.push(unit);
    }

    fn remove(&mut self, unit: Unit) {
        self.0.remove(unit);
    }
}
