//! SIEVE: a hand goes from the oldest to the newest, and takes what was not used since it last came by.

use super::order::Order;
use super::{Policy, Unit};
use std::collections::BTreeSet;

/// Units in the order in which they came.
#[derive(Default)]
pub struct Sieve {
    order: Order,
    used: BTreeSet<Unit>,
    /// Where the hand is.
    hand: u64,
}

impl Policy for Sieve {
    fn insert(&mut self, unit: Unit, _: usize) {
        self.order.push(unit);
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        self.used.insert(unit);
    }

    fn evict(&mut self) -> Option<Unit> {
        loop {
            let (place, unit) = self.order.from(self.hand).or_else(|| self.order.from(0))?;
            self.hand = place + 1;
            if !self.used.remove(&unit) {
                self.order.remove(unit);
                return Some(unit);
            }
        }
    }

    fn spare(&mut self, unit: Unit) {
        self.order.push(unit);
    }

    fn remove(&mut self, unit: Unit) {
        self.order.remove(unit);
        self.used.remove(&unit);
    }
}
