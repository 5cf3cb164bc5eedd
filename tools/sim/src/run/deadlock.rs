//! Who waits for whose locks, and whether that leads back to its start: then it would last for ever (S21).

use super::Call;
use super::locks::{Lock, Owner};
use std::collections::BTreeSet;

/// Who waits for whom.
pub(super) struct Waits(Vec<(Owner, Owner)>);

impl Waits {
    /// Those of calls that want locks, as far as these locks are in their way.
    pub(super) fn new<'a>(calls: impl Iterator<Item = &'a Call>, held: &[Lock]) -> Self {
        let wanted = calls.filter(|call| call.waits()).filter_map(Call::wanted);
        let of_one = |wanted: Lock| {
            let in_the_way = held.iter().filter(move |lock| lock.excludes(&wanted));
            in_the_way.map(move |lock| (wanted.owner(), lock.owner()))
        };
        Self(wanted.flat_map(of_one).collect())
    }

    /// Whether an owner waits for itself in the end.
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
