//! The cache table of a node: the nodes that may have units of its files in memory.
//!
//! The table is a hint: a cache holder answers whether it has the bytes. So the table is in memory only and bounded. It forgets files by
//! the time of their last open, and some holders of a file that many nodes hold.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_core::limits::{HELD_FILES_MAX, HOLDERS_KEPT_MAX, HOLDERS_SENT_MAX};
use tameike_core::wire::admin::FileHolders;
use tameike_core::wire::holders::{Holder, HolderOutcome};
use tameike_core::{Generation, InodeId, NodeId};

/// Requests to one holder after which its counts are halved, so that recent ones weigh more.
const COUNTED_MAX: u32 = 1 << 10;

/// The cache table of one node.
#[derive(Default)]
pub struct CacheTable {
    is_unused: bool,
    files: Mutex<Files>,
}

/// Files in two generations: when `recent` has half of the allowed files, it becomes `before`, and the old `before` is dropped.
#[derive(Default)]
struct Files {
    recent: BTreeMap<InodeId, File>,
    before: BTreeMap<InodeId, File>,
}

struct File {
    generation: Generation,
    holders: Vec<Holder>,
    /// Counts of reported and of replaced holders: round robin, so that all holders serve equally many nodes.
    reported: usize,
    replaced: usize,
}

impl CacheTable {
    /// A table without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// A table that stays empty and reports no holders.
    pub fn unused() -> Self {
        Self { is_unused: true, ..Self::default() }
    }

    /// A node opens a file of this generation. Returns other nodes that may hold it, at most [`HOLDERS_SENT_MAX`], those with the fewest
    /// misses first. The node becomes a holder.
    pub fn opened(&self, inode: InodeId, generation: Generation, by: NodeId) -> Vec<Holder> {
        if self.is_unused {
            return Vec::new();
        }
        let mut files = self.files.lock();
        let Some(file) = files.of_version(inode, generation) else { return Vec::new() };
        let mut reported = file.select(by);
        reported.sort_by_key(Holder::missed);
        file.add(by);
        reported
    }

    /// A node has written the file, which has this generation now: only that node holds it.
    pub fn changed(&self, inode: InodeId, generation: Generation, by: NodeId) {
        if !self.is_unused
            && let Some(file) = self.files.lock().of_version(inode, generation)
        {
            file.add(by);
        }
    }

    /// The file was removed.
    pub fn removed(&self, inode: InodeId) {
        let mut files = self.files.lock();
        files.recent.remove(&inode);
        files.before.remove(&inode);
    }

    /// The agent of a node has failed: it holds nothing.
    pub fn peer_failed(&self, node: NodeId) {
        let Files { recent, before } = &mut *self.files.lock();
        for file in recent.values_mut().chain(before.values_mut()) {
            file.holders.retain(|holder| holder.node != node);
        }
    }

    /// Generation and holders of a file, if the table has it.
    pub fn known(&self, inode: InodeId) -> Option<FileHolders> {
        let files = self.files.lock();
        let file = files.recent.get(&inode).or_else(|| files.before.get(&inode))?;
        let mut holders = file.holders.clone();
        holders.sort_by_key(|holder| (holder.missed(), holder.node));
        Some(FileHolders { generation: file.generation, holders })
    }

    /// The files whose holders got the most requests, with their counts; at most `count`.
    pub fn most_asked(&self, count: usize) -> Vec<(InodeId, u64)> {
        let files = self.files.lock();
        let all = files.recent.iter().chain(&files.before);
        let requested = |file: &File| file.holders.iter().map(|holder| u64::from(holder.requested)).sum();
        let mut files: Vec<_> = all.map(|(inode, file)| (*inode, requested(file))).collect();
        files.sort_by_key(|&(inode, requested)| (std::cmp::Reverse(requested), inode));
        files.truncate(count);
        files
    }

    /// Adds the outcomes of requests to holders.
    pub fn add_outcomes(&self, outcomes: &[HolderOutcome]) {
        let Files { recent, before } = &mut *self.files.lock();
        for HolderOutcome { inode, holder: counts } in outcomes {
            let file = recent.get_mut(inode).or_else(|| before.get_mut(inode));
            let known = file.and_then(|file| file.holders.iter_mut().find(|known| known.node == counts.node));
            let Some(known) = known else { continue };
            known.requested = known.requested.saturating_add(counts.requested);
            known.delivered = known.delivered.saturating_add(counts.delivered);
            while known.requested > COUNTED_MAX {
                (known.requested, known.delivered) = (known.requested / 2, known.delivered / 2);
            }
        }
    }
}

impl Files {
    /// The entry of a file of this generation; none if the table has a newer one.
    fn of_version(&mut self, inode: InodeId, generation: Generation) -> Option<&mut File> {
        if !self.recent.contains_key(&inode) {
            if self.recent.len() >= HELD_FILES_MAX / 2 {
                self.before = std::mem::take(&mut self.recent);
            }
            let file = self.before.remove(&inode);
            self.recent.insert(inode, file.unwrap_or(File::new(generation)));
        }
        let file = self.recent.get_mut(&inode)?;
        if file.generation < generation {
            *file = File::new(generation);
        }
        (file.generation == generation).then_some(file)
    }
}

impl File {
    fn new(generation: Generation) -> Self {
        Self { generation, holders: Vec::new(), reported: 0, replaced: 0 }
    }

    /// Returns holders other than this node, round robin.
    fn select(&mut self, by: NodeId) -> Vec<Holder> {
        let count = self.holders.len();
        let mut selected = Vec::new();
        for _ in 0..count {
            if selected.len() == HOLDERS_SENT_MAX {
                break;
            }
            let holder = self.holders[self.reported % count];
            self.reported = self.reported.wrapping_add(1);
            selected.extend((holder.node != by).then_some(holder));
        }
        selected
    }

    /// Adds a holder. In a full list it replaces the oldest one.
    fn add(&mut self, node: NodeId) {
        if self.holders.iter().any(|holder| holder.node == node) {
            return;
        }
        let new = Holder { node, requested: 0, delivered: 0 };
        if self.holders.len() < HOLDERS_KEPT_MAX {
            self.holders.push(new);
        } else {
            self.holders[self.replaced % HOLDERS_KEPT_MAX] = new;
            self.replaced = self.replaced.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FILE: InodeId = InodeId(7);
    const FIRST: Generation = Generation(1);
    const SECOND: Generation = Generation(2);

    fn nodes(holders: &[Holder]) -> BTreeSet<u32> {
        holders.iter().map(|holder| holder.node.0).collect()
    }

    fn outcome(node: u32, requested: u32, delivered: u32) -> HolderOutcome {
        HolderOutcome { inode: FILE, holder: Holder { node: NodeId(node), requested, delivered } }
    }

    #[test]
    fn an_opener_gets_the_other_holders_and_becomes_one() {
        let table = CacheTable::new();
        assert_eq!(table.opened(FILE, FIRST, NodeId(1)), []);
        assert_eq!(table.opened(FILE, FIRST, NodeId(1)), [], "itself is no other");
        assert_eq!(nodes(&table.opened(FILE, FIRST, NodeId(2))), BTreeSet::from([1]));
        assert_eq!(nodes(&table.opened(FILE, FIRST, NodeId(1))), BTreeSet::from([2]));
        table.peer_failed(NodeId(1));
        assert_eq!(nodes(&table.opened(FILE, FIRST, NodeId(3))), BTreeSet::from([2]));
        table.removed(FILE);
        assert_eq!(table.opened(FILE, FIRST, NodeId(4)), []);
    }

    #[test]
    fn only_the_writer_holds_a_new_version() {
        let table = CacheTable::new();
        table.opened(FILE, FIRST, NodeId(1));
        table.changed(FILE, SECOND, NodeId(2));
        assert_eq!(table.opened(FILE, FIRST, NodeId(3)), [], "an answer that was overtaken");
        assert_eq!(nodes(&table.opened(FILE, SECOND, NodeId(4))), BTreeSet::from([2]));
        assert_eq!(table.opened(FILE, Generation(3), NodeId(5)), []);
    }

    #[test]
    fn holders_with_the_fewest_misses_come_first() {
        let table = CacheTable::new();
        for node in 1..=3 {
            table.opened(FILE, FIRST, NodeId(node));
        }
        table.add_outcomes(&[outcome(1, 9, 2), outcome(2, 9, 9), outcome(3, 9, 8), outcome(4, 1, 0)]);
        table.opened(InodeId(8), FIRST, NodeId(1));
        assert_eq!(table.most_asked(5), [(FILE, 27), (InodeId(8), 0)]);
        assert_eq!(table.most_asked(1), [(FILE, 27)]);
        let known = table.known(FILE).expect("it was opened");
        let counts: Vec<_> =
            known.holders.iter().map(|one| (one.node.0, one.requested, one.delivered)).collect();
        assert_eq!((known.generation, counts), (FIRST, vec![(2, 9, 9), (3, 9, 8), (1, 9, 2)]));
        assert_eq!(table.known(InodeId(9)), None);
        let reported = table.opened(FILE, FIRST, NodeId(5));
        let misses: Vec<_> = reported.iter().map(|holder| (holder.node.0, holder.missed())).collect();
        assert_eq!(misses, [(2, 0), (3, 1), (1, 7)]);
        for _ in 0..5000 {
            table.add_outcomes(&[outcome(1, 1, 1)]);
        }
        let reported = table.opened(FILE, FIRST, NodeId(5));
        let first = reported.iter().find(|holder| holder.node == NodeId(1)).expect("a holder");
        assert!(first.missed() <= 1 && first.requested <= COUNTED_MAX, "old misses count less: {first:?}");
    }

    #[test]
    fn the_table_keeps_a_sample_of_many_holders_and_reports_a_part_of_it() {
        let table = CacheTable::new();
        let mut reports = BTreeMap::<u32, u32>::new();
        for node in 0..1000 {
            let some = table.opened(FILE, FIRST, NodeId(node));
            assert!(some.len() == HOLDERS_SENT_MAX.min(node as usize), "{node}: {}", some.len());
            nodes(&some).into_iter().for_each(|node| *reports.entry(node).or_default() += 1);
        }
        assert_eq!(table.files.lock().recent[&FILE].holders.len(), HOLDERS_KEPT_MAX);
        assert!(reports.len() > 950, "many share the load: {}", reports.len());
        let most = reports.values().max().copied().unwrap_or(0);
        let limit = 3 * HOLDERS_SENT_MAX as u32;
        assert!(most <= limit, "no holder is reported much more often than the others: {most}");
    }

    #[test]
    fn an_unused_table_reports_no_holders() {
        let table = CacheTable::unused();
        table.changed(FILE, FIRST, NodeId(1));
        assert_eq!(table.opened(FILE, FIRST, NodeId(2)), []);
        assert_eq!(table.opened(FILE, FIRST, NodeId(3)), []);
    }

    #[test]
    fn files_that_were_not_opened_for_longest_are_forgotten() {
        let table = CacheTable::new();
        let opened = |number| table.opened(InodeId(number), FIRST, NodeId(1));
        for number in 0..3 * HELD_FILES_MAX as u64 {
            opened(number);
            opened(5);
        }
        let files = table.files.lock();
        assert!(files.recent.len() + files.before.len() <= HELD_FILES_MAX);
        assert!(files.recent.contains_key(&InodeId(5)) || files.before.contains_key(&InodeId(5)));
        assert!(!files.recent.contains_key(&InodeId(6)) && !files.before.contains_key(&InodeId(6)));
    }
}
