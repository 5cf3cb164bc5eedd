//! Choice of the unit that is evicted next, after S3-FIFO (Yang et al., SOSP 2023), with what a node knows of other nodes' memory
//! ([decision 0042](../../../../docs/decisions/0042-s3-fifo-eviction-with-last-copy-protection.md)).
//!
//! What is new waits in a queue of a tenth of the memory; what was used again by the time that it comes to the front goes to the
//! other one, where it goes round as often as it is used; all else leaves. So what is read once passes by what is read again. A use
//! takes no lock. To go on in a unit is no use of its own (`Pass` of the file's units): a unit that is read in eight steps is read once.
//!
//! What is not known to be in another node's memory goes round once more, in the queue where it is: it may be the last copy.

use super::file::{FileData, QueueEntry};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tameike_core::InodeId;

/// One part in so many of the memory is for what is new,
const NEW_PART: usize = 10;
/// but so many units at least, where they are no more than a quarter: eight readers each have one, and those that are read ahead.
const NEW_MIN: usize = 32;

/// For whom a unit is to leave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// What a program waits for.
    Now,
    /// What somebody is likely to ask for: nothing leaves for it that came for the same reason and was not asked for yet.
    Ahead,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    New,
    Kept,
}

/// The unit that is to leave, if it can.
pub(super) struct Candidate {
    pub(super) entry: Arc<QueueEntry>,
    queue: Queue,
}

/// How many units of each queue may yet be looked at: those that cannot leave once each, after the last time that one went round.
pub(super) struct Looks {
    new: usize,
    kept: usize,
}

/// The queues, of whose units each is in one as long as it is in memory. Units leave memory for many reasons: those that have are
/// seen as such when they come to the front, or when they are more than those that are there.
pub(super) struct Queues {
    /// Units that there is room for.
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

    /// An entry for a unit that has come into memory.
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

    /// All may be looked at.
    pub(super) fn looks(&self) -> Looks {
        Looks { new: self.new.len(), kept: self.kept.len() }
    }

    /// The unit that is to leave next.
    pub(super) fn candidate(&mut self, need: Need, looks: &mut Looks) -> Option<Candidate> {
        let has_many_new = self.new.len() >= self.new_target();
        // What is new may go to the others, which are looked at then.
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

    /// It cannot leave now, and comes after the others.
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

    /// It has left; if it was new, its name is remembered: what comes back soon was used again.
    pub(super) fn left(&mut self, candidate: &Candidate) {
        self.forget(candidate);
        if candidate.queue == Queue::New {
            self.gone.insert(candidate.entry.name(), self.capacity);
        }
    }

    /// It is taken out, if nobody has moved it since.
    pub(super) fn forget(&mut self, candidate: &Candidate) -> bool {
        let queue = self.queue(candidate.queue);
        let is_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &candidate.entry));
        is_first && queue.pop_front().is_some()
    }

    /// A unit by its number among all, what is new before the others.
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

/// Whether a unit is in memory: an entry that only its queue has is of a unit that has been evicted.
fn is_in_memory(entry: &Arc<QueueEntry>) -> bool {
    Arc::strong_count(entry) > 1
}

/// Names of units that have left, the last of them. One that left twice may be forgotten with the first time.
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

    /// Takes a name out; whether it was there.
    fn remove(&mut self, name: (InodeId, u64)) -> bool {
        self.names.remove(&name)
    }
}

#[cfg(test)]
mod tests;
