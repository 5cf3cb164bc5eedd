//! Locks of one file, and its blocked requests in the order of arrival.
//!
//! A blocked request gets its lock before later ones that conflict with it. There are two exceptions: a later request that does not wait,
//! and one whose owner already has a lock of the file, which could otherwise wait for itself.

use tameike_core::NodeId;
use tameike_core::limits::LOCKS_PER_FILE_MAX;
use tameike_core::lock_table::LockTable;
use tameike_core::wire::lock::{Blocker, FileLock, LockOwner, LockRange};

/// A blocked request; `wake` gets its outcome.
pub(super) struct Waiter<W> {
    pub lock: FileLock,
    pub ticket: u64,
    pub wake: W,
}

/// Locks and blocked requests of one file.
pub(super) struct FileLocks<W> {
    held: LockTable,
    waiting: Vec<Waiter<W>>,
}

impl<W> Default for FileLocks<W> {
    fn default() -> Self {
        Self { held: LockTable::default(), waiting: Vec::new() }
    }
}

impl<W> FileLocks<W> {
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Returns a lock that conflicts with `lock`.
    pub(super) fn conflict(&self, lock: &FileLock) -> Option<FileLock> {
        self.held.conflicts(lock).min_by_key(|held| held.range.start).copied()
    }

    /// Takes the lock if none conflicts. Returns the requests that no longer wait.
    pub(super) fn try_take(&mut self, lock: FileLock) -> Option<Vec<W>> {
        if self.conflict(&lock).is_some() {
            return None;
        }
        self.held.take(lock);
        Some(self.grant()) // it may have been a downgrade
    }

    /// Adds a blocked request. Returns the requests that no longer wait.
    pub(super) fn wait(&mut self, waiter: Waiter<W>) -> Vec<W> {
        self.waiting.push(waiter);
        self.grant()
    }

    pub(super) fn unlock(&mut self, owner: LockOwner, range: LockRange) -> Vec<W> {
        self.held.unlock(owner, range);
        self.grant()
    }

    /// Ends a wait without the lock. Returns its request, and those that no longer wait.
    pub(super) fn end_wait(&mut self, node: NodeId, ticket: u64) -> (Option<W>, Vec<W>) {
        let Some(position) = self.position(node, ticket) else { return (None, Vec::new()) };
        let ended = self.waiting.remove(position).wake;
        (Some(ended), self.grant())
    }

    /// Lets a request overtake those that only arrived earlier. Returns the requests that no longer wait.
    pub(super) fn overtake(&mut self, node: NodeId, ticket: u64) -> Vec<W> {
        match self.position(node, ticket) {
            Some(position) if self.conflict(&self.waiting[position].lock).is_none() => {
                let Waiter { lock, wake, .. } = self.waiting.remove(position);
                self.held.take(lock);
                let mut granted = vec![wake];
                granted.extend(self.grant());
                granted
            }
            _ => Vec::new(),
        }
    }

    /// Drops the locks and requests of a node. Returns its requests, and those of other nodes that no longer wait.
    pub(super) fn drop_node(&mut self, node: NodeId) -> (Vec<W>, Vec<W>) {
        self.held.drop_node(node);
        let is_gone = |waiter: &mut Waiter<W>| waiter.lock.owner.node == node;
        let gone = self.waiting.extract_if(.., is_gone).map(|waiter| waiter.wake).collect();
        (gone, self.grant())
    }

    /// Returns the blocked requests.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = W> {
        self.waiting.into_iter().map(|waiter| waiter.wake)
    }

    /// Returns true if the limit of locks and requests is reached.
    pub(super) fn is_full(&self) -> bool {
        // A change of kind in the middle of a lock splits it in three.
        self.held.len() + self.waiting.len() + 2 > LOCKS_PER_FILE_MAX
    }

    /// Returns true if unlocking these bytes splits a lock in two.
    pub(super) fn splits(&self, owner: LockOwner, range: LockRange) -> bool {
        self.held.splits(owner, range)
    }

    /// Returns the owners that an owner waits for.
    pub(super) fn blockers(&self, owner: LockOwner) -> Vec<Blocker> {
        let own = self.waiting.iter().enumerate().filter(|(_, waiter)| waiter.lock.owner == owner);
        own.flat_map(|(position, waiter)| {
            let blocker = |owner, holds| Blocker { ticket: waiter.ticket, owner, holds };
            let holders = self.held.conflicts(&waiter.lock).map(move |held| blocker(held.owner, true));
            holders.chain(self.before(position).map(move |first| blocker(first.lock.owner, false)))
        })
        .collect()
    }

    fn position(&self, node: NodeId, ticket: u64) -> Option<usize> {
        self.waiting.iter().position(|waiter| waiter.lock.owner.node == node && waiter.ticket == ticket)
    }

    /// Returns the requests with priority over the one at `position`.
    fn before(&self, position: usize) -> impl Iterator<Item = &Waiter<W>> {
        let lock = &self.waiting[position].lock;
        let yields = !self.held.has(lock.owner);
        self.waiting[..position].iter().filter(move |first| yields && first.lock.excludes(lock))
    }

    /// Grants locks to requests that no longer wait. A grant does not allow another one, except for a downgrade: so the search restarts
    /// after each grant.
    fn grant(&mut self) -> Vec<W> {
        let mut granted = Vec::new();
        let mut position = 0;
        while position < self.waiting.len() {
            let free = self.conflict(&self.waiting[position].lock).is_none()
                && self.before(position).next().is_none();
            if free {
                let Waiter { lock, wake, .. } = self.waiting.remove(position);
                self.held.take(lock);
                granted.push(wake);
                position = 0;
            } else {
                position += 1;
            }
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::wire::lock::LockKind::{self, Exclusive, Shared};

    fn lock(number: u64, kind: LockKind) -> FileLock {
        let owner = LockOwner { node: NodeId(number as u32), number };
        FileLock { owner, range: LockRange { start: 0, last: 9 }, kind, pid: 1 }
    }

    fn wait(locks: &mut FileLocks<u64>, number: u64, kind: LockKind) -> Vec<u64> {
        locks.wait(Waiter { lock: lock(number, kind), ticket: number, wake: number })
    }

    /// S21i.
    #[test]
    fn a_writer_is_not_starved_by_readers() {
        let mut locks = FileLocks::default();
        assert_eq!(wait(&mut locks, 1, Shared), [1]);
        assert_eq!(wait(&mut locks, 2, Exclusive), []);
        assert_eq!(wait(&mut locks, 3, Shared), [], "it arrived after the writer");
        assert_eq!(locks.try_take(lock(4, Shared)), Some(vec![]), "a request that does not wait overtakes");
        assert_eq!(locks.unlock(lock(4, Shared).owner, LockRange::ALL), []);
        assert_eq!(locks.unlock(lock(1, Shared).owner, LockRange::ALL), [2]);
        assert_eq!(wait(&mut locks, 5, Shared), []);
        assert_eq!(
            locks.unlock(lock(2, Shared).owner, LockRange::ALL),
            [3, 5],
            "readers are granted together"
        );
    }

    #[test]
    fn an_upgrade_does_not_wait_for_a_request_that_waits_for_it() {
        let mut locks = FileLocks::default();
        assert_eq!(wait(&mut locks, 1, Shared), [1]);
        assert_eq!(wait(&mut locks, 2, Exclusive), []);
        assert_eq!(wait(&mut locks, 1, Exclusive), [1]);
        let blocker = Blocker { ticket: 2, owner: lock(1, Shared).owner, holds: true };
        assert_eq!(locks.blockers(lock(2, Shared).owner), [blocker]);
        assert_eq!(locks.try_take(lock(1, Shared)), Some(vec![]), "a downgrade");
        assert_eq!(wait(&mut locks, 3, Shared), []);
        assert_eq!(locks.overtake(NodeId(3), 3), [3]);
        assert_eq!(locks.overtake(NodeId(2), 2), [], "another owner has a conflicting lock");
    }

    #[test]
    fn waits_end_and_nodes_fail() {
        let mut locks = FileLocks::default();
        assert_eq!(wait(&mut locks, 1, Shared), [1]);
        assert_eq!(wait(&mut locks, 2, Exclusive), []);
        assert_eq!(wait(&mut locks, 3, Shared), []);
        assert_eq!(locks.end_wait(NodeId(9), 2), (None, vec![]), "the number of another node's request");
        assert_eq!(locks.end_wait(NodeId(2), 2), (Some(2), vec![3]));
        assert_eq!(wait(&mut locks, 4, Exclusive), []);
        assert_eq!(wait(&mut locks, 5, Exclusive), []);
        assert_eq!(locks.drop_node(NodeId(4)), (vec![4], vec![]));
        assert_eq!(locks.drop_node(NodeId(1)), (vec![], vec![]));
        assert_eq!(locks.drop_node(NodeId(3)), (vec![], vec![5]));
        assert_eq!(locks.drop_node(NodeId(5)), (vec![], vec![]));
        assert!(locks.is_idle());
    }
}
