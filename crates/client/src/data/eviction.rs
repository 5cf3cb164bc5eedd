//! Unit eviction by S3-FIFO (Yang et al., SOSP 2023), extended with last-copy protection ([decision
//! 0042](../../../../docs/decisions/0042-s3-fifo-eviction-with-last-copy-protection.md)).
//!
//! A new unit enters the small queue, a tenth of the memory. If it was used again when it reaches the front, it moves to the main queue,
//! where it stays as long as it is used; otherwise it is evicted, and the ghost queue keeps its name. So a scan does not displace data that
//! is read repeatedly. A use takes no lock. Reading on within a unit is not another use (`Pass` in the file's units): a unit that is read
//! in eight steps is read once.
//!
//! A unit that no other node is known to have in memory passes through its queue once more: it may be the last copy.

use super::file::{FileData, QueueEntry};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tameike_core::InodeId;

/// The small queue, which new units enter, gets 1/`SMALL_PART` of the memory,
const SMALL_PART: usize = 10;
/// but at least this many units, up to a quarter of the memory: enough for eight readers with one unit each and their readahead.
const SMALL_MIN: usize = 32;

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
    Small,
    Main,
}

/// The unit to evict next.
pub(super) struct Candidate {
    pub(super) entry: Arc<QueueEntry>,
    queue: Queue,
}

/// Units of each queue that the search may still examine: each unit that cannot be evicted once, after the last one was requeued for a use.
pub(super) struct Search {
    small: usize,
    main: usize,
}

/// The eviction queues. Each unit in memory is in one of them. An entry whose unit has left memory for another reason is removed when it
/// reaches the front, or when a queue exceeds twice the capacity.
pub(super) struct S3FifoQueues {
    /// Number of units that fit in memory.
    capacity: usize,
    small: VecDeque<Arc<QueueEntry>>,
    main: VecDeque<Arc<QueueEntry>>,
    ghost: Ghost,
}

impl S3FifoQueues {
    pub(super) fn new(capacity: usize) -> Self {
        let (small, main, ghost) = Default::default();
        Self { capacity, small, main, ghost }
    }

    pub(super) fn enter(&mut self, file: &Arc<FileData>, unit: u64) -> Arc<QueueEntry> {
        let entry = Arc::new(QueueEntry::new(file, unit));
        let queue = if self.ghost.remove((file.inode, unit)) { Queue::Main } else { Queue::Small };
        let capacity = self.capacity;
        let queue = self.queue(queue);
        if queue.len() > 2 * capacity {
            queue.retain(is_in_memory);
        }
        queue.push_back(entry.clone());
        entry
    }

    /// Begins a search over all units.
    pub(super) fn begin_search(&self) -> Search {
        Search { small: self.small.len(), main: self.main.len() }
    }

    pub(super) fn candidate(&mut self, need: Need, search: &mut Search) -> Option<Candidate> {
        let is_small_full = self.small.len() >= self.small_target();
        // New units may move to the main queue, which is then searched again.
        let order: &[Queue] = if is_small_full {
            &[Queue::Small, Queue::Main]
        } else {
            &[Queue::Main, Queue::Small, Queue::Main]
        };
        order.iter().find_map(|&queue| {
            let entry = match queue {
                Queue::Small => self.first_small(need, search),
                Queue::Main => self.first_main(search),
            };
            Some(Candidate { entry: entry?, queue })
        })
    }

    fn first_small(&mut self, need: Need, search: &mut Search) -> Option<Arc<QueueEntry>> {
        while search.small > 0 {
            let entry = self.small.pop_front()?;
            if !is_in_memory(&entry) {
                continue;
            }
            if entry.take_uses() > 0 {
                (search.small, search.main) = (search.small - 1, search.main + 1);
                self.main.push_back(entry);
            } else if need == Need::Ahead && !entry.is_accessed() {
                search.small -= 1;
                self.small.push_back(entry);
            } else if entry.is_spared_now() {
                self.small.push_back(entry);
                search.small = self.small.len();
            } else {
                self.small.push_front(entry.clone());
                return Some(entry);
            }
        }
        None
    }

    fn first_main(&mut self, search: &mut Search) -> Option<Arc<QueueEntry>> {
        while search.main > 0 {
            let entry = self.main.pop_front()?;
            if !is_in_memory(&entry) {
                continue;
            }
            if entry.take_use() == 0 && !entry.is_spared_now() {
                self.main.push_front(entry.clone());
                return Some(entry);
            }
            self.main.push_back(entry);
            search.main = self.main.len();
        }
        None
    }

    /// Requeues a unit that cannot be evicted now.
    pub(super) fn requeue(&mut self, candidate: &Candidate, search: &mut Search) {
        let budget = match candidate.queue {
            Queue::Small => &mut search.small,
            Queue::Main => &mut search.main,
        };
        *budget = budget.saturating_sub(1);
        if self.forget(candidate) {
            self.queue(candidate.queue).push_back(candidate.entry.clone());
        }
    }

    /// Removes an evicted unit. A new one is remembered: if it soon returns, it counts as used again.
    pub(super) fn evicted(&mut self, candidate: &Candidate) {
        self.forget(candidate);
        if candidate.queue == Queue::Small {
            self.ghost.insert(candidate.entry.name(), self.capacity);
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
        let in_main = number.checked_sub(self.small.len());
        in_main.map_or_else(|| self.small.get(number), |number| self.main.get(number)).cloned()
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Arc<QueueEntry>> {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    fn small_target(&self) -> usize {
        (self.capacity / SMALL_PART).max(SMALL_MIN.min(self.capacity / 4)).max(1)
    }
}

/// An entry that only its queue references belongs to an evicted unit.
fn is_in_memory(entry: &Arc<QueueEntry>) -> bool {
    Arc::strong_count(entry) > 1
}

/// The ghost queue: names of the units that the small queue evicted last. A unit that was evicted twice may be forgotten with its first
/// eviction.
#[derive(Default)]
struct Ghost {
    order: VecDeque<(InodeId, u64)>,
    names: BTreeSet<(InodeId, u64)>,
}

impl Ghost {
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

    fn remove(&mut self, name: (InodeId, u64)) -> bool {
        self.names.remove(&name)
    }
}

#[cfg(test)]
mod tests;
