//! Deadlock detection: cycles in the wait-for graph of lock owners (S21).

use std::collections::BTreeSet;

/// A lock owner: its view, its node, and its number there.
pub(super) type Owner = (usize, usize, u64);

/// The wait-for graph: each edge leads from a waiting owner to the owner of a lock that blocks it.
pub(super) struct Waits(Vec<(Owner, Owner)>);

impl Waits {
    pub(super) fn new(edges: impl Iterator<Item = (Owner, Owner)>) -> Self {
        Self(edges.collect())
    }

    /// Returns true if an owner waits for itself, directly or not.
    pub(super) fn lead_back(&self, start: Owner) -> bool {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(owner) = left.pop() {
            for &(_, next) in self.0.iter().filter(|(waiter, _)| *waiter == owner) {
                if next == start {
                    return true;
                }
                if seen.insert(next) {
                    left.push(next);
                }
            }
        }
        false
    }
}
