//! Detection of deadlocks between owners of locks: circles in the graph of waits, which would last for ever (S21).

use std::collections::BTreeSet;

/// An owner of locks in any number of files: its view, its node, and its number there.
pub(super) type Owner = (usize, usize, u64);

/// The graph of waits: each edge leads from an owner that waits to the owner of a lock for which it waits.
pub(super) struct Waits(Vec<(Owner, Owner)>);

impl Waits {
    pub(super) fn new(edges: impl Iterator<Item = (Owner, Owner)>) -> Self {
        Self(edges.collect())
    }

    /// Whether an owner waits, directly or not, for itself.
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
