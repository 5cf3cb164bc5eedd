//! Unit eviction by S3-FIFO (Yang et al., SOSP 2023), extended with last-copy protection ([decision
//! 0042](../../../../docs/decisions/0042-s3-fifo-eviction-with-last-copy-protection.md)).
//!
//! A new unit enters a queue of a tenth of the memory. If it was used again when it reaches the front, it moves to the main queue, where it
//! stays as long as it is used; otherwise it is evicted. So a scan does not displace data that is read repeatedly. A use takes no lock.
//! Reading on within a unit is not another use (`Pass` in the file's units): a unit that is read in eight steps is read once.
//!
//! A unit that no other node is known to have in memory passes through its queue once more: it may be the last copy.

use super::file::{FileData, QueueEntry};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tameike_core::InodeId;

/// New units get 1/`NEW_PART` of the memory,
const NEW_PART: usize = 10;
/// but at least this many units, up to a quarter of the memory: enough for eight readers with one unit each and their readahead.
const NEW_MIN: usize = 32;

/// Purpose of an eviction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A frame for a program that waits.
    Now,
    /// Readahead: evicts no unit that was itself read ahead and is still unread.
    Ahead,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    New,
    Kept,
}

/// The unit to evict next.
pub(super) struct Candidate {
    pub(super) entry: Arc<QueueEntry>,
    queue: Queue,
}

/// Units of each queue that the search may still examine: each unit that cannot be evicted once, after the last one was requeued for a use.
pub(super) struct Looks {
    new: usize,
    kept: usize,
}

/// The eviction queues. Each unit in memory is in one of them. An entry whose unit has left memory for another reason is removed when it
/// reaches the front, or when a queue exceeds twice the capacity.
pub(super) struct Queues {
    /// Number of units that fit in memory.
    capacity: usize,
    new: VecDeque<Arc<QueueEntry>>,
    kept: VecDeque<Arc<QueueEntry>>,
    gone: Names,
}

impl Queues {
    pub(super) fn new(capacity: usize) -> Self {
        let (new, kept, gone) = Default::default();
        Self { capacity, new, kept, gone }
    }

    /// Adds a unit that has come into memory.
    pub(super) fn enter(&mut self, file: &Arc<FileData>, unit: u64) -> Arc<QueueEntry> {
        let entry = Arc::new(QueueEntry::new(file, unit));
        let queue = if self.gone.remove((file.inode, unit)) { Queue::Kept } else { Queue::New };
        let capacity = self.capacity;
        let queue = self.queue(queue);
        if queue.len() > 2 * capacity {
            queue.retain(is_in_memory);
        }
        queue.push_back(entry.clone());
        entry
    }

    /// A search over all units.
    pub(super) fn looks(&self) -> Looks {
        Looks { new: self.new.len(), kept: self.kept.len() }
    }

    /// Returns the unit to evict next.
    pub(super) fn candidate(&mut self, need: Need, looks: &mut Looks) -> Option<Candidate> {
        let has_many_new = self.new.len() >= self.new_target();
        // New units may move to the kept queue, which is then searched again.
        let order: &[Queue] =
            if has_many_new { &[Queue::New, Queue::Kept] } else { &[Queue::Kept, Queue::New, Queue::Kept] };
        order.iter().find_map(|&queue| {
            let entry = match queue {
                Queue::New => self.first_new(need, looks),
                Queue::Kept => self.first_kept(looks),
            };
            Some(Candidate { entry: entry?, queue })
        })
    }

    fn first_new(&mut self, need: Need, looks: &mut Looks) -> Option<Arc<QueueEntry>> {
        while looks.new > 0 {
            let entry = self.new.pop_front()?;
            if !is_in_memory(&entry) {
                continue;
            }
            if entry.take_uses() > 0 {
                (looks.new, looks.kept) = (looks.new - 1, looks.kept + 1);
                self.kept.push_back(entry);
            } else if need == Need::Ahead && !entry.is_met() {
                looks.new -= 1;
                self.new.push_back(entry);
            } else if entry.is_spared_now() {
                self.new.push_back(entry);
                looks.new = self.new.len();
            } else {
                self.new.push_front(entry.clone());
                return Some(entry);
            }
        }
        None
    }

    fn first_kept(&mut self, looks: &mut Looks) -> Option<Arc<QueueEntry>> {
        while looks.kept > 0 {
            let entry = self.kept.pop_front()?;
            if !is_in_memory(&entry) {
                continue;
            }
            if entry.take_use() == 0 && !entry.is_spared_now() {
                self.kept.push_front(entry.clone());
                return Some(entry);
            }
            self.kept.push_back(entry);
            looks.kept = self.kept.len();
        }
        None
    }

    /// Requeues a unit that cannot be evicted now.
    pub(super) fn pass_by(&mut self, candidate: &Candidate, looks: &mut Looks) {
        let left = match candidate.queue {
            Queue::New => &mut looks.new,
            Queue::Kept => &mut looks.kept,
        };
        *left = left.saturating_sub(1);
        if self.forget(candidate) {
            self.queue(candidate.queue).push_back(candidate.entry.clone());
        }
    }

    /// Removes an evicted unit. A new one is remembered: if it soon returns, it counts as used again.
    pub(super) fn left(&mut self, candidate: &Candidate) {
        self.forget(candidate);
        if candidate.queue == Queue::New {
            self.gone.insert(candidate.entry.name(), self.capacity);
        }
    }

    /// Removes the unit unless another task has moved it.
    pub(super) fn forget(&mut self, candidate: &Candidate) -> bool {
        let queue = self.queue(candidate.queue);
        let is_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &candidate.entry));
        is_first && queue.pop_front().is_some()
    }

    /// Returns the unit at a position in both queues, new units first.
    pub(super) fn nth(&self, number: usize) -> Option<Arc<QueueEntry>> {
        let kept = number.checked_sub(self.new.len());
        kept.map_or_else(|| self.new.get(number), |number| self.kept.get(number)).cloned()
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Arc<QueueEntry>> {
        match queue {
            Queue::New => &mut self.new,
            Queue::Kept => &mut self.kept,
        }
    }

    fn new_target(&self) -> usize {
        (self.capacity / NEW_PART).max(NEW_MIN.min(self.capacity / 4)).max(1)
    }
}

/// An entry that only its queue references belongs to an evicted unit.
fn is_in_memory(entry: &Arc<QueueEntry>) -> bool {
    Arc::strong_count(entry) > 1
}

/// Names of the units evicted last. A unit that was evicted twice may be forgotten with its first eviction.
#[derive(Default)]
struct Names {
    order: VecDeque<(InodeId, u64)>,
    names: BTreeSet<(InodeId, u64)>,
}

impl Names {
    fn insert(&mut self, name: (InodeId, u64), limit: usize) {
        if !self.names.insert(name) {
            return;
        }
        self.order.push_back(name);
        while self.order.len() > limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }

    /// Returns true if the name was there.
    fn remove(&mut self, name: (InodeId, u64)) -> bool {
        self.names.remove(&name)
    }
}

#[cfg(test)]
mod tests;
