//! First in, first out; what was used since goes round so many times more.

use super::order::Order;
use super::{Policy, Unit};
use std::collections::BTreeMap;

/// Units in the order in which they came, each with its uses since.
pub struct Clock {
    rounds: u8,
    order: Order,
    uses: BTreeMap<Unit, u8>,
}

impl Clock {
    /// With 0 rounds, uses count for nothing.
    pub fn new(rounds: u8) -> Self {
        Self { rounds, order: Order::default(), uses: BTreeMap::new() }
    }
}

impl Policy for Clock {
    fn insert(&mut self, unit: Unit, _: usize) {
        self.order.push(unit);
        self.uses.insert(unit, 0);
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        if let Some(uses) = self.uses.get_mut(&unit) {
            *uses = (*uses + 1).min(self.rounds);
        }
    }

    fn evict(&mut self) -> Option<Unit> {
        loop {
            let unit = self.order.pop()?;
            match self.uses.get_mut(&unit) {
                Some(uses) if *uses > 0 => {
                    *uses -= 1;
                    self.order.push(unit);
                }
                _ => {
                    self.uses.remove(&unit);
                    return Some(unit);
                }
            }
        }
    }

    fn spare(&mut self, unit: Unit) {
        self.insert(unit, 0);
    }

    fn remove(&mut self, unit: Unit) {
        self.order.remove(unit);
        self.uses.remove(&unit);
    }
}
