//! S3-FIFO: a small queue for what is new, a main one for what was used since it came, and the names of what the small one let go.

use super::order::Order;
use super::{Policy, Unit};
use std::collections::BTreeMap;

/// Uses are counted up to this.
const USES_MAX: u8 = 3;

/// The three queues.
pub struct S3Fifo {
    small_target: usize,
    capacity: usize,
    /// Uses with which a unit stays after its time in the small queue.
    threshold: u8,
    small: Order,
    main: Order,
    ghosts: Order,
    uses: BTreeMap<Unit, u8>,
}

impl S3Fifo {
    /// One part in `part` is for what is new, but at least `least` units where that is not more than a quarter.
    pub fn new(capacity: usize, part: usize, least: usize, threshold: u8) -> Self {
        let (small, main, ghosts, uses) = Default::default();
        let small_target = (capacity / part).max(least.min(capacity / 4)).max(1);
        Self { small_target, capacity, threshold, small, main, ghosts, uses }
    }

    fn evict_new(&mut self) -> Option<Unit> {
        while let Some(unit) = self.small.pop() {
            let uses = self.uses.get_mut(&unit)?;
            if *uses < self.threshold {
                self.uses.remove(&unit);
                self.ghosts.push(unit);
                if self.ghosts.len() > self.capacity {
                    self.ghosts.pop();
                }
                return Some(unit);
            }
            *uses = 0;
            self.main.push(unit);
        }
        None
    }

    fn evict_main(&mut self) -> Option<Unit> {
        loop {
            let unit = self.main.pop()?;
            let uses = self.uses.get_mut(&unit)?;
            if *uses == 0 {
                self.uses.remove(&unit);
                return Some(unit);
            }
            *uses -= 1;
            self.main.push(unit);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, unit: Unit, _: usize) {
        let was_here = self.ghosts.remove(unit);
        let queue = if was_here { &mut self.main } else { &mut self.small };
        queue.push(unit);
        self.uses.insert(unit, 0);
    }

    fn hit(&mut self, unit: Unit, _: usize) {
        if let Some(uses) = self.uses.get_mut(&unit) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    fn evict(&mut self) -> Option<Unit> {
        let from_new = if self.small.len() >= self.small_target { self.evict_new() } else { None };
        from_new.or_else(|| self.evict_main()).or_else(|| self.evict_new())
    }

    fn spare(&mut self, unit: Unit) {
        let was_new = self.ghosts.remove(unit);
        let queue = if was_new { &mut self.small } else { &mut self.main };
        queue.push(unit);
        self.uses.insert(unit, 0);
    }

    fn remove(&mut self, unit: Unit) {
        self.small.remove(unit);
        self.main.remove(unit);
        self.uses.remove(&unit);
    }
}
