//! The changes of a region since the last release.

use std::collections::VecDeque;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::region::{Changes, NodeChanges, PAGE_RANGES_MAX, Writer, coarsen, united};

/// Largest number of published changes in a log.
pub(super) const ENTRIES_MAX: usize = 1 << 10;
/// Largest number of their page ranges, and of those of waiting arrivals.
pub(super) const RANGES_MAX: usize = 1 << 16;

struct Entry {
    sequence: u64,
    changes: NodeChanges,
}

/// Published changes, of which the oldest are dropped if there are too many, and those of arrivals.
#[derive(Default)]
pub(super) struct ChangeLog {
    entries: VecDeque<Entry>,
    ranges: usize,
    /// Sequence number of the last change.
    sequence: u64,
    /// The log has all published changes after this sequence number.
    complete_after: u64,
    /// Sequence number of the last release.
    released: u64,
    arrived: Vec<NodeChanges>,
}

fn count(changes: &[NodeChanges]) -> usize {
    changes.iter().map(|changes| changes.pages.count()).sum()
}

/// One entry per writer, with few enough ranges for a message.
fn listed(changes: Vec<NodeChanges>) -> Changes {
    let mut changes = united(changes);
    coarsen(&mut changes, PAGE_RANGES_MAX);
    if changes.len() > PAGE_RANGES_MAX { Changes::Any } else { Changes::Pages(changes) }
}

impl ChangeLog {
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Appends a published change, and returns its sequence number; that of the last change if there are no pages.
    pub(super) fn publish(&mut self, writer: Writer, pages: RangeSet) -> u64 {
        if pages.is_empty() {
            return self.sequence;
        }
        self.sequence += 1;
        self.ranges += pages.count();
        let changes = NodeChanges { writer, pages };
        self.entries.push_back(Entry { sequence: self.sequence, changes });
        while self.entries.len() > ENTRIES_MAX || self.ranges > RANGES_MAX {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.ranges -= oldest.changes.pages.count();
            self.complete_after = oldest.sequence;
        }
        self.sequence
    }

    /// The published changes after a sequence number.
    pub(super) fn after(&self, sequence: u64) -> Changes {
        if sequence < self.complete_after || sequence > self.sequence {
            return Changes::Any;
        }
        let first = self.entries.partition_point(|entry| entry.sequence <= sequence);
        listed(self.entries.range(first..).map(|entry| entry.changes.clone()).collect())
    }

    /// Adds changes of an arrival.
    pub(super) fn arrive(&mut self, changes: Vec<NodeChanges>) {
        self.arrived.extend(changes);
        if count(&self.arrived) > RANGES_MAX {
            self.arrived = united(std::mem::take(&mut self.arrived));
            coarsen(&mut self.arrived, PAGE_RANGES_MAX);
        }
    }

    /// Returns true if an arrival has changes.
    pub(super) fn has_arrived_changes(&self) -> bool {
        self.arrived.iter().any(|changes| !changes.pages.is_empty())
    }

    /// Takes all changes since the last release. All nodes receive them, so the log is empty then.
    pub(super) fn release(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.arrived);
        let entries = std::mem::take(&mut self.entries);
        let is_complete = self.complete_after <= self.released;
        changes.extend(entries.into_iter().map(|entry| entry.changes));
        self.ranges = 0;
        self.sequence += 1;
        (self.complete_after, self.released) = (self.sequence, self.sequence);
        if is_complete { listed(changes) } else { Changes::Any }
    }
}
