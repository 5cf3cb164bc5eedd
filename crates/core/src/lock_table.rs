//! Locks held on one file, by the rules of POSIX: a new lock of an owner replaces its locks of the same bytes, and merges with adjacent
//! ones of the same kind.
//!
//! The home of a file has such a table of all locks, and each client one of its own locks, which it reclaims from the next primary.

use crate::ids::NodeId;
use crate::wire::lock::{FileLock, LockOwner, LockRange};

/// Locks held on one file.
#[derive(Debug, Default)]
pub struct LockTable(Vec<FileLock>);

impl LockTable {
    /// Returns true if there are no locks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of locks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the locks, in no certain order.
    pub fn iter(&self) -> impl Iterator<Item = &FileLock> {
        self.0.iter()
    }

    /// Returns true if unlocking these bytes leaves a lock on both sides of them.
    pub fn splits(&self, owner: LockOwner, range: LockRange) -> bool {
        let around = |held: &FileLock| held.range.start < range.start && held.range.last > range.last;
        self.0.iter().any(|held| held.owner == owner && around(held))
    }

    /// Returns true if the owner has a lock.
    pub fn has(&self, owner: LockOwner) -> bool {
        self.0.iter().any(|held| held.owner == owner)
    }

    /// Returns the locks that conflict with `lock`.
    pub fn conflicts<'a>(&'a self, lock: &'a FileLock) -> impl Iterator<Item = &'a FileLock> {
        self.0.iter().filter(|held| held.excludes(lock))
    }

    /// Takes a lock that has no conflicts.
    pub fn take(&mut self, mut lock: FileLock) {
        self.unlock(lock.owner, lock.range);
        self.0.retain(|held| {
            let joins = held.owner == lock.owner && held.kind == lock.kind && touch(held.range, lock.range);
            if joins {
                lock.range.start = lock.range.start.min(held.range.start);
                lock.range.last = lock.range.last.max(held.range.last);
            }
            !joins
        });
        self.0.push(lock);
    }

    /// Unlocks these bytes of the owner.
    pub fn unlock(&mut self, owner: LockOwner, range: LockRange) {
        let mut parts = Vec::new();
        self.0.retain(|held| {
            let overlaps = held.owner == owner && held.range.overlaps(range);
            if overlaps {
                let before = range.start.checked_sub(1).map(|last| LockRange { last, ..held.range });
                let after = range.last.checked_add(1).map(|start| LockRange { start, ..held.range });
                let left = before.into_iter().chain(after).filter(|part| part.start <= part.last);
                parts.extend(left.map(|range| FileLock { range, ..*held }));
            }
            !overlaps
        });
        self.0.append(&mut parts);
    }

    /// Drops all locks of a node. Returns true if there were any.
    pub fn drop_node(&mut self, node: NodeId) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.owner.node != node);
        self.0.len() < before
    }
}

/// Returns true if the ranges overlap or are adjacent.
fn touch(one: LockRange, other: LockRange) -> bool {
    one.start <= other.last.saturating_add(1) && other.start <= one.last.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::lock::LockKind::{self, Exclusive, Shared};
    use proptest::prelude::*;

    fn lock(number: u64, kind: LockKind, start: u64, last: u64) -> FileLock {
        let owner = LockOwner { node: NodeId(number as u32 % 2), number };
        FileLock { owner, range: LockRange { start, last }, kind, pid: number as u32 }
    }

    fn held(table: &LockTable) -> Vec<(u64, LockKind, u64, u64)> {
        let mut all: Vec<_> = table.0.iter().collect();
        all.sort_by_key(|held| (held.range.start, held.owner));
        all.iter().map(|held| (held.owner.number, held.kind, held.range.start, held.range.last)).collect()
    }

    #[test]
    fn locks_of_one_owner_split_merge_and_change_kind() {
        let mut table = LockTable::default();
        table.take(lock(1, Exclusive, 10, 29));
        table.take(lock(1, Shared, 15, 19));
        let split = [(1, Exclusive, 10, 14), (1, Shared, 15, 19), (1, Exclusive, 20, 29)];
        assert_eq!(held(&table), split, "a downgrade in the middle");
        table.take(lock(1, Exclusive, 15, 19));
        assert_eq!(held(&table), [(1, Exclusive, 10, 29)], "an upgrade of the middle joins all");
        table.take(lock(1, Exclusive, 30, u64::MAX));
        assert_eq!(held(&table), [(1, Exclusive, 10, u64::MAX)], "neighbours join");
        table.unlock(table.0[0].owner, LockRange { start: 0, last: 10 });
        table.unlock(table.0[0].owner, LockRange { start: 50, last: u64::MAX });
        assert_eq!(held(&table), [(1, Exclusive, 11, 49)]);
        table.unlock(table.0[0].owner, LockRange::ALL);
        assert!(table.is_empty());
    }

    #[test]
    fn shared_locks_conflict_with_exclusive_locks_of_other_owners_only() {
        let mut table = LockTable::default();
        table.take(lock(1, Shared, 0, 9));
        table.take(lock(2, Shared, 5, 14));
        let count = |wanted: FileLock| table.conflicts(&wanted).count();
        assert_eq!(count(lock(3, Shared, 0, 99)), 0);
        assert_eq!(count(lock(3, Exclusive, 0, 99)), 2);
        assert_eq!(count(lock(3, Exclusive, 10, 10)), 1);
        assert_eq!(count(lock(3, Exclusive, 15, 15)), 0);
        assert_eq!(count(lock(1, Exclusive, 0, 4)), 0, "an owner does not exclude itself");
        assert_eq!(count(lock(1, Exclusive, 0, 5)), 1, "an upgrade waits for the other reader");
    }

    #[test]
    fn locks_of_a_failed_node_are_dropped() {
        let mut table = LockTable::default();
        for number in 1..=3 {
            table.take(lock(number, Shared, 0, 9));
        }
        assert!(table.drop_node(NodeId(1)) && !table.drop_node(NodeId(1)));
        assert_eq!(held(&table), [(2, Shared, 0, 9)]);
    }

    const BYTES: u64 = 24;

    proptest! {
        /// Compares the table with a model of each owner's lock on each byte.
        #[test]
        fn agrees_with_locks_of_single_bytes(
            steps in prop::collection::vec((0..4_u64, 0..3_u8, 0..BYTES, 0..BYTES), 0..60),
        ) {
            let mut table = LockTable::default();
            let mut model = [[None; BYTES as usize]; 4];
            for (number, action, start, length) in steps {
                let (start, last) = (start, (start + length).min(BYTES - 1));
                let kind = if action == 1 { Shared } else { Exclusive };
                let wanted = lock(number, kind, start, last);
                let bytes = start as usize..=last as usize;
                if action == 0 {
                    table.unlock(wanted.owner, wanted.range);
                    model[number as usize][bytes].fill(None);
                } else {
                    let others = model.iter().enumerate().filter(|(other, _)| *other != number as usize);
                    let blocked = others.flat_map(|(_, own)| &own[bytes.clone()]).flatten();
                    let blocked = blocked.copied().any(|other| kind == Exclusive || other == Exclusive);
                    prop_assert_eq!(table.conflicts(&wanted).next().is_some(), blocked);
                    if !blocked {
                        table.take(wanted);
                        model[number as usize][bytes].fill(Some(kind));
                    }
                }
                for (number, own) in model.iter().enumerate() {
                    // Each run of bytes of one kind is one lock, and there are no others.
                    let mut runs = Vec::new();
                    for (byte, kind) in own.iter().enumerate().filter_map(|(byte, kind)| Some((byte as u64, (*kind)?))) {
                        match runs.last_mut() {
                            Some((last_kind, _, last)) if *last_kind == kind && *last + 1 == byte => *last = byte,
                            _ => runs.push((kind, byte, byte)),
                        }
                    }
                    let all = held(&table);
                    let of = all.iter().filter(|held| held.0 == number as u64);
                    prop_assert_eq!(of.map(|held| (held.1, held.2, held.3)).collect::<Vec<_>>(), runs);
                }
            }
        }
    }
}
