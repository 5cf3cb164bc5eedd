//! Volatile state of the metadata service: open inodes, names blocked by pending operations, and operations that have not ended.

use super::leases::Leases;
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::meta::{EntryName, OpenId, Opener, Step};
use tameike_core::{Errno, Fault, InodeId, NodeId, Result, Timestamp};
use tameike_io::os::runtime::{Promise, Resolver, promise};

/// The requests that wait for a busy name or directory.
#[derive(Default)]
struct WaitList(Vec<Resolver<()>>);

impl WaitList {
    fn join(&mut self) -> Promise<()> {
        let (resolver, promise) = promise();
        self.0.push(resolver);
        promise
    }
}

/// The state. The service logs changes to names with this locked, so that it cannot change meanwhile.
#[derive(Default)]
pub(super) struct State {
    /// All opens, and the number of opens of each inode.
    opens: BTreeMap<Opener, InodeId>,
    counts: BTreeMap<InodeId, u32>,
    /// When a program last set the access time of an open inode: earlier reads no longer count, even if their closes arrive later.
    access_times_set: BTreeMap<InodeId, Timestamp>,
    /// Opens that their nodes cancelled for want of a reply, and whose requests may still arrive. Few, as each belongs to a call that
    /// failed with `EHOSTDOWN`. Dropped when their node fails.
    undone: BTreeSet<Opener>,
    pub(super) leases: Leases,
    busy_names: BTreeMap<EntryName, WaitList>,
    busy_dirs: BTreeMap<InodeId, WaitList>,
    /// Operations that this home coordinates, and whether their end is logged.
    operations: BTreeMap<u64, bool>,
    next_operation: u64,
}

impl State {
    pub(super) fn new(first_operation: u64, leases: Leases) -> Self {
        Self { next_operation: first_operation, leases, ..Self::default() }
    }

    /// Fails if the node has cancelled the open, since it would never close it.
    pub(super) fn check_opener(&mut self, opener: Opener) -> Result<()> {
        if self.undone.remove(&opener) {
            return Err(Fault::new(Errno::ESTALE, "the node cancelled the open before its request arrived"));
        }
        Ok(())
    }

    pub(super) fn open(&mut self, inode: InodeId, opener: Opener) {
        if self.opens.insert(opener, inode).is_none() {
            *self.counts.entry(inode).or_default() += 1;
        }
    }

    /// Removes an open. Returns its inode if that was the last open. An unknown open was closed before.
    pub(super) fn close(&mut self, opener: Opener) -> Option<InodeId> {
        let inode = self.opens.remove(&opener)?;
        self.leave(inode).then_some(inode)
    }

    /// As [`Self::close`], for an open whose request may still arrive.
    pub(super) fn undo(&mut self, opener: Opener) -> Option<InodeId> {
        if !self.opens.contains_key(&opener) {
            self.undone.insert(opener);
        }
        self.close(opener)
    }

    /// Removes all opens of a node. Returns the inodes that are no longer open.
    pub(super) fn close_all(&mut self, node: NodeId) -> Vec<InodeId> {
        let all = Opener { node, open: OpenId(0) }..=Opener { node, open: OpenId(u64::MAX) };
        self.undone.retain(|opener| opener.node != node);
        let opens: Vec<_> = self.opens.range(all).map(|(opener, _)| *opener).collect();
        opens.into_iter().filter_map(|opener| self.close(opener)).collect()
    }

    fn leave(&mut self, inode: InodeId) -> bool {
        let Some(count) = self.counts.get_mut(&inode) else { return true };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&inode);
            self.access_times_set.remove(&inode);
        }
        is_last
    }

    pub(super) fn is_open(&self, inode: InodeId) -> bool {
        self.counts.contains_key(&inode)
    }

    /// Records that a program sets the access time of an inode.
    pub(super) fn sets_access_time(&mut self, inode: InodeId, now: Timestamp) {
        if self.is_open(inode) {
            let last = self.access_times_set.entry(inode).or_insert(now);
            *last = now.max(*last);
        }
    }

    /// Returns the inode of an open that was read at `time`, unless its access time was set since.
    pub(super) fn read_through(&self, opener: Opener, time: Timestamp) -> Option<InodeId> {
        let inode = *self.opens.get(&opener)?;
        self.access_times_set.get(&inode).is_none_or(|set| *set < time).then_some(inode)
    }

    /// Returns the open inodes that lose a link by these steps.
    pub(super) fn held<'a>(&self, steps: impl IntoIterator<Item = &'a Step>) -> Vec<InodeId> {
        let dropped = steps.into_iter().filter_map(|step| match step {
            Step::DropLink { inode } => Some(*inode),
            _ => None,
        });
        dropped.filter(|&inode| self.is_open(inode)).collect()
    }

    pub(super) fn is_busy(&self, name: &EntryName) -> bool {
        self.busy_dirs.contains_key(&name.dir) || self.busy_names.contains_key(name)
    }

    pub(super) fn is_busy_dir(&self, dir: InodeId) -> bool {
        self.busy_dirs.contains_key(&dir)
    }

    /// Returns true if a pending operation blocks a name in the directory.
    pub(super) fn has_busy_name(&self, dir: InodeId) -> bool {
        let first = EntryName { dir, name: Vec::new() };
        self.busy_names.range(first..).next().is_some_and(|(name, _)| name.dir == dir)
    }

    /// Returns a promise to wait for if the name is busy.
    pub(super) fn wait_name(&mut self, name: &EntryName) -> Option<Promise<()>> {
        if let Some(promise) = self.wait_dir(name.dir) {
            return Some(promise);
        }
        self.busy_names.get_mut(name).map(WaitList::join)
    }

    /// Returns a promise to wait for if the directory is busy.
    pub(super) fn wait_dir(&mut self, dir: InodeId) -> Option<Promise<()>> {
        self.busy_dirs.get_mut(&dir).map(WaitList::join)
    }

    pub(super) fn make_busy(&mut self, name: EntryName) {
        self.busy_names.entry(name).or_default();
    }

    pub(super) fn make_busy_dir(&mut self, dir: InodeId) {
        self.busy_dirs.entry(dir).or_default();
    }

    /// Unblocks a name. Returns the waiting requests, which the caller wakes after unlocking the state.
    #[must_use]
    pub(super) fn free(&mut self, name: &EntryName) -> Vec<Resolver<()>> {
        self.busy_names.remove(name).unwrap_or_default().0
    }

    /// As [`Self::free`], for a directory.
    #[must_use]
    pub(super) fn free_dir(&mut self, dir: InodeId) -> Vec<Resolver<()>> {
        self.busy_dirs.remove(&dir).unwrap_or_default().0
    }

    pub(super) fn begin(&mut self) -> u64 {
        let sequence = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(sequence, false);
        sequence
    }

    pub(super) fn resume(&mut self, sequence: u64) {
        self.operations.insert(sequence, false);
    }

    pub(super) fn ended(&mut self, sequence: u64) {
        self.operations.insert(sequence, true);
    }

    /// Returns the operations whose end is logged, but may not be persisted yet.
    pub(super) fn ended_operations(&self) -> Vec<u64> {
        self.operations.iter().filter(|(_, ended)| **ended).map(|(sequence, _)| *sequence).collect()
    }

    /// Drops operations whose ends are persisted.
    pub(super) fn forget(&mut self, sequences: &[u64]) {
        for sequence in sequences {
            self.operations.remove(sequence);
        }
    }

    /// Returns the first operation that may not have ended; the ends of all earlier ones are persisted.
    pub(super) fn finished(&self) -> u64 {
        self.operations.keys().next().copied().unwrap_or(self.next_operation)
    }
}

#[cfg(test)]
impl State {
    /// Panics if a name, a directory or an operation is pending.
    pub(super) fn assert_idle(&self) {
        assert!(self.busy_names.is_empty(), "busy: {:?}", self.busy_names.keys());
        assert!(self.busy_dirs.is_empty(), "busy: {:?}", self.busy_dirs.keys());
        assert!(self.operations.values().all(|ended| *ended), "not ended: {:?}", self.operations);
    }
}
