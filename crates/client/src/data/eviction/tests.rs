use super::super::Home;
use super::*;
use tameike_core::Layout;

fn file() -> Arc<FileData> {
    Arc::new(FileData::new(InodeId(7), Layout::Striped, Home::Inode))
}

/// The eviction queues, with the units of `file` that are in memory and their entries.
struct Memory {
    queues: Queues,
    file: Arc<FileData>,
    held: Vec<Arc<QueueEntry>>,
}

impl Memory {
    fn new(capacity: usize) -> Self {
        Self { queues: Queues::new(capacity), file: file(), held: Vec::new() }
    }

    /// Adds a unit. A program uses it unless it is read ahead.
    fn enter(&mut self, unit: u64, is_met: bool) -> Arc<QueueEntry> {
        let entry = self.queues.enter(&self.file, unit);
        self.held.push(entry.clone());
        if is_met {
            entry.meet();
        }
        entry
    }

    /// Evicts a unit, if there is a clean one.
    fn leave(&mut self, need: Need, is_clean: impl Fn(u64) -> bool) -> Option<u64> {
        let mut looks = self.queues.looks();
        while let Some(candidate) = self.queues.candidate(need, &mut looks) {
            let unit = candidate.entry.name().1;
            if is_clean(unit) {
                self.held.retain(|entry| !Arc::ptr_eq(entry, &candidate.entry));
                self.queues.left(&candidate);
                return Some(unit);
            }
            self.queues.pass_by(&candidate, &mut looks);
        }
        None
    }

    fn leave_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.leave(Need::Now, |_| true)).collect()
    }

    /// Adds these units, evicting one unit for each; returns the evicted ones.
    fn pass(&mut self, units: std::ops::Range<u64>) -> Vec<u64> {
        let mut left = Vec::new();
        for unit in units {
            left.extend(self.leave(Need::Now, |_| true));
            self.enter(unit, true);
        }
        left
    }
}

#[test]
fn what_was_used_again_stays_while_others_pass() {
    let mut memory = Memory::new(20);
    (0..20).for_each(|unit| {
        memory.enter(unit, true);
    });
    [2, 5].iter().for_each(|&unit: &usize| memory.held[unit].used());
    let left = memory.pass(20..200);
    assert!(left.len() == 180 && !left.contains(&2) && !left.contains(&5), "{left:?}");
}

#[test]
fn what_comes_back_soon_was_used_again() {
    let mut memory = Memory::new(20);
    (0..20).for_each(|unit| {
        memory.enter(unit, true);
    });
    assert_eq!(memory.pass(20..25), [0, 1, 2, 3, 4]);
    memory.leave(Need::Now, |_| true);
    memory.enter(3, true);
    let left = memory.pass(25..200);
    assert!(left.len() == 175 && !left.contains(&3), "{left:?}");
}

#[test]
fn a_last_copy_goes_round_once_more() {
    let mut memory = Memory::new(20);
    (0..6).for_each(|unit| {
        memory.enter(unit, true);
    });
    [3, 4].iter().for_each(|&unit: &usize| memory.held[unit].set_elsewhere(true));
    assert_eq!(memory.leave_all(), [3, 4, 0, 1, 2, 5]);
    let mut memory = Memory::new(20);
    (0..3).for_each(|unit| {
        memory.enter(unit, true).set_elsewhere(true);
    });
    memory.held[0].set_elsewhere(false);
    assert_eq!(memory.leave_all(), [1, 2, 0]);
}

#[test]
fn what_was_read_ahead_does_not_leave_for_more_of_it() {
    let mut memory = Memory::new(20);
    memory.enter(0, false);
    memory.enter(1, true);
    memory.enter(2, false);
    let ahead = |memory: &mut Memory| memory.leave(Need::Ahead, |_| true);
    assert_eq!((ahead(&mut memory), ahead(&mut memory)), (Some(1), None));
    let mut left = memory.leave_all();
    left.sort_unstable();
    assert_eq!(left, [0, 2]);
}

#[test]
fn what_cannot_leave_is_looked_at_once_and_stays() {
    let mut memory = Memory::new(20);
    (0..9).for_each(|unit| {
        memory.enter(unit, true);
    });
    [1, 8].iter().for_each(|&unit: &usize| memory.held[unit].used());
    assert_eq!(memory.leave(Need::Now, |_| false), None);
    assert_eq!(memory.leave(Need::Now, |unit| unit == 8), Some(8));
    let mut left = memory.leave_all();
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Units left memory without an eviction, as other nodes changed the file repeatedly; the queue once grew with each.
#[test]
fn the_queues_do_not_grow_with_what_has_left_by_itself() {
    let mut memory = Memory::new(20);
    for round in 0..1000 {
        memory.enter(round, true);
        if round % 3 > 0 {
            memory.held.pop();
        }
        if memory.held.len() == 20 {
            memory.leave(Need::Now, |_| true).expect("a clean unit");
        }
        let Queues { new, kept, gone, .. } = &memory.queues;
        assert!(
            new.len() + kept.len() <= 2 * 20 + 20 + 1 && gone.order.len() <= 20 && gone.names.len() <= 20
        );
    }
    let left = memory.leave_all();
    assert!(left.len() < 20 && left.iter().all(|unit| unit % 3 == 0), "{left:?}");
}
