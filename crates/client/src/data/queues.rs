//! Which unit leaves memory next: that of S3-FIFO (Yang et al., SOSP 2023), with what a node knows of other nodes' memory
//! ([decision 0042](../../../../docs/decisions/0042-what-stays-in-memory.md)).
//!
//! What is new waits in a queue of a tenth of the memory; what was used again by the time that it comes to the front goes to the
//! other one, where it goes round as often as it is used; all else leaves. So what is read once passes by what is read again. A use
//! takes no lock. To go on in a unit is no use of its own ([`super::pass`]): a unit that is read in eight steps is read once.
//!
//! What is not known to be in another node's memory goes round once more, in the queue where it is: it may be the last copy.

use super::FileData;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::InodeId;

/// Uses are counted up to this.
const USES_MAX: u8 = 3;
/// One part in so many of the memory is for what is new,
const NEW_PART: usize = 10;
/// but so many units at least, where they are no more than a quarter: eight readers each have one, and those that are read ahead.
const NEW_MIN: usize = 32;

/// A unit in a queue, as long as it is in memory.
pub(super) struct Place {
    file: Weak<FileData>,
    inode: InodeId,
    unit: u64,
    /// Uses since it came, or came round.
    uses: AtomicU8,
    /// Whether any program has used it since it came.
    is_met: AtomicBool,
    /// Whether another node is known to have it in memory, too.
    is_elsewhere: AtomicBool,
    /// Whether it went round once more.
    is_spared: AtomicBool,
}

impl Place {
    fn new(file: &Arc<FileData>, unit: u64) -> Self {
        let (uses, is_met, is_elsewhere, is_spared) = Default::default();
        Self { file: Arc::downgrade(file), inode: file.inode, unit, uses, is_met, is_elsewhere, is_spared }
    }

    /// The unit's file, if the node still has it, and its index.
    pub(super) fn unit(&self) -> Option<(Arc<FileData>, u64)> {
        Some((self.file.upgrade()?, self.unit))
    }

    /// A program has begun to use it.
    pub(super) fn meet(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// A program has used it again.
    pub(super) fn used(&self) {
        let uses = self.uses.load(Ordering::Relaxed);
        // Two at the same time may count as one.
        self.uses.store((uses + 1).min(USES_MAX), Ordering::Relaxed);
        self.is_spared.store(false, Ordering::Relaxed);
    }

    /// Another node has it in memory, too, or has it no more in this version.
    pub(super) fn set_elsewhere(&self, is_elsewhere: bool) {
        self.is_elsewhere.store(is_elsewhere, Ordering::Relaxed);
    }

    /// Whether it goes round once more: nobody else is known to have it, or it came before it was asked for, and nobody has asked yet.
    fn is_spared_now(&self) -> bool {
        let is_dear = !self.is_elsewhere.load(Ordering::Relaxed) || !self.is_met.load(Ordering::Relaxed);
        is_dear && !self.is_spared.swap(true, Ordering::Relaxed)
    }
}

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
    pub(super) place: Arc<Place>,
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
    new: VecDeque<Arc<Place>>,
    kept: VecDeque<Arc<Place>>,
    gone: Names,
}

impl Queues {
    pub(super) fn new(capacity: usize) -> Self {
        let (new, kept, gone) = Default::default();
        Self { capacity, new, kept, gone }
    }

    /// A place for a unit that has come into memory.
    pub(super) fn enter(&mut self, file: &Arc<FileData>, unit: u64) -> Arc<Place> {
        let place = Arc::new(Place::new(file, unit));
        let queue = if self.gone.remove((file.inode, unit)) { Queue::Kept } else { Queue::New };
        let capacity = self.capacity;
        let queue = self.queue(queue);
        if queue.len() > 2 * capacity {
            queue.retain(is_in_memory);
        }
        queue.push_back(place.clone());
        place
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
            let place = match queue {
                Queue::New => self.first_new(need, looks),
                Queue::Kept => self.first_kept(looks),
            };
            Some(Candidate { place: place?, queue })
        })
    }

    fn first_new(&mut self, need: Need, looks: &mut Looks) -> Option<Arc<Place>> {
        while looks.new > 0 {
            let place = self.new.pop_front()?;
            if !is_in_memory(&place) {
                continue;
            }
            if place.uses.swap(0, Ordering::Relaxed) > 0 {
                (looks.new, looks.kept) = (looks.new - 1, looks.kept + 1);
                self.kept.push_back(place);
            } else if need == Need::Ahead && !place.is_met.load(Ordering::Relaxed) {
                looks.new -= 1;
                self.new.push_back(place);
            } else if place.is_spared_now() {
                self.new.push_back(place);
                looks.new = self.new.len();
            } else {
                self.new.push_front(place.clone());
                return Some(place);
            }
        }
        None
    }

    fn first_kept(&mut self, looks: &mut Looks) -> Option<Arc<Place>> {
        while looks.kept > 0 {
            let place = self.kept.pop_front()?;
            if !is_in_memory(&place) {
                continue;
            }
            let uses = place.uses.load(Ordering::Relaxed);
            place.uses.store(uses.saturating_sub(1), Ordering::Relaxed);
            if uses == 0 && !place.is_spared_now() {
                self.kept.push_front(place.clone());
                return Some(place);
            }
            self.kept.push_back(place);
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
            self.queue(candidate.queue).push_back(candidate.place.clone());
        }
    }

    /// It has left; if it was new, its name is remembered: what comes back soon was used again.
    pub(super) fn left(&mut self, candidate: &Candidate) {
        self.forget(candidate);
        if candidate.queue == Queue::New {
            self.gone.insert((candidate.place.inode, candidate.place.unit), self.capacity);
        }
    }

    /// It is taken out, if nobody has moved it since.
    pub(super) fn forget(&mut self, candidate: &Candidate) -> bool {
        let queue = self.queue(candidate.queue);
        let is_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &candidate.place));
        is_first && queue.pop_front().is_some()
    }

    /// A unit by its number among all, what is new before the others.
    pub(super) fn nth(&self, number: usize) -> Option<Arc<Place>> {
        let kept = number.checked_sub(self.new.len());
        kept.map_or_else(|| self.new.get(number), |number| self.kept.get(number)).cloned()
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Arc<Place>> {
        match queue {
            Queue::New => &mut self.new,
            Queue::Kept => &mut self.kept,
        }
    }

    fn new_target(&self) -> usize {
        (self.capacity / NEW_PART).max(NEW_MIN.min(self.capacity / 4)).max(1)
    }
}

/// Whether a unit has its place: a place that nobody has but its queue is of one that has left.
fn is_in_memory(place: &Arc<Place>) -> bool {
    Arc::strong_count(place) > 1
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
