//! Leases on names, and the times for which directories may be cached.
//!
//! The home leases the name of a file to one node at a time, which then answers lookups itself. If another node changes the file or
//! its name, the home revokes the lease before that node's call returns.
//!
//! Many kernels cache directories, and the home cannot notify them all. Each reply about a directory may be cached for
//! [`DIRECTORY_CACHE_TIME`], and a change of it returns only after earlier replies to other nodes have expired. Replies after the change
//! have the new state, so that no call waits longer than that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tameike_core::limits::{DIRECTORY_CACHE_TIME, LEASES_MAX, NAME_LEASE};
use tameike_core::wire::meta::Step;
use tameike_core::{InodeId, NodeId};

/// How long the home grants no lease on a name after a revocation: several nodes change the file, so they ask the home.
const CONTENTION: Duration = Duration::from_secs(1);

enum Lease {
    /// A node has the lease on the name of a file in this directory.
    Name { holder: NodeId, dir: InodeId },
    /// Several nodes change the name. The last holder may still use its revoked lease.
    Contended { pending: Option<NodeId> },
    /// The kernel of this node caches the directory, or those of several nodes do.
    Directory { node: Option<NodeId> },
}

struct Record {
    lease: Lease,
    until: Duration,
}

/// A stale lease or cached directory that a change must wait for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Revocation {
    /// The changed inode.
    pub(super) inode: InodeId,
    /// The node to notify; `None` if only waiting helps.
    pub(super) holder: Option<NodeId>,
    /// When it expires.
    pub(super) until: Duration,
}

/// The leases and cached directories that a home tracks. Times are of the monotonic clock.
#[derive(Default)]
pub(super) struct Leases {
    records: BTreeMap<InodeId, Record>,
    /// The number of records of all homes of the node.
    of_node: Arc<AtomicUsize>,
    /// Queue of expirations; each record is in it at least once.
    order: VecDeque<(Duration, InodeId)>,
    /// Expiration of all cached directories that did not fit the table.
    unrecorded_until: Duration,
}

impl Leases {
    /// `of_node` counts the records of all homes of the node.
    pub(super) fn new(of_node: Arc<AtomicUsize>) -> Self {
        Self::after(of_node, Duration::ZERO)
    }

    /// As [`Self::new`], when directories may be cached until then that another node has served.
    pub(super) fn after(of_node: Arc<AtomicUsize>, cached_until: Duration) -> Self {
        let (records, order) = Default::default();
        Self { records, of_node, order, unrecorded_until: cached_until }
    }

    /// Grants `node` the lease on the name of `inode` in `dir`, unless another node has it or the table is full.
    pub(super) fn grant(&mut self, inode: InodeId, dir: InodeId, node: NodeId, now: Duration) -> bool {
        self.purge(now);
        let until = now + NAME_LEASE;
        let lease = Lease::Name { holder: node, dir };
        match self.records.get_mut(&inode) {
            Some(Record { lease: Lease::Name { holder, .. }, until: old }) if *holder == node => {
                *old = until;
                true
            }
            Some(record) if record.until > now => false,
            Some(record) => {
                *record = Record { lease, until };
                true
            }
            None => self.insert(inode, Record { lease, until }),
        }
    }

    /// Records that `node` may cache a directory.
    pub(super) fn cached(&mut self, dir: InodeId, node: NodeId, now: Duration) {
        self.purge(now);
        let until = now + DIRECTORY_CACHE_TIME;
        if let Some(record) = self.records.get_mut(&dir) {
            let alone = record.until <= now
                || matches!(record.lease, Lease::Directory { node: Some(one) } if one == node);
            *record = Record { lease: Lease::Directory { node: alone.then_some(node) }, until };
        } else if !self.insert(dir, Record { lease: Lease::Directory { node: Some(node) }, until }) {
            self.unrecorded_until = until;
        }
    }

    fn insert(&mut self, inode: InodeId, record: Record) -> bool {
        let fits = self.of_node.load(Ordering::Relaxed) < LEASES_MAX;
        if fits {
            self.order.push_back((record.until, inode));
            self.records.insert(inode, record);
            self.of_node.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Returns the stale lease or cached directory of other nodes after `by` (if known) changed `inode`.
    pub(super) fn changed(
        &mut self,
        inode: InodeId,
        is_dir: bool,
        by: Option<NodeId>,
        now: Duration,
    ) -> Option<Revocation> {
        let Some(record) = self.records.get_mut(&inode) else {
            let until = self.unrecorded_until;
            return (is_dir && until > now).then_some(Revocation { inode, holder: None, until });
        };
        let until = record.until;
        let holder = match record.lease {
            _ if until <= now => return None,
            Lease::Contended { pending: None } => return None,
            Lease::Contended { pending: Some(holder) } | Lease::Name { holder, .. } if by == Some(holder) => {
                return None;
            }
            Lease::Directory { node: Some(node) } if by == Some(node) => return None,
            Lease::Directory { .. } => None,
            Lease::Contended { pending } => pending,
            Lease::Name { holder, .. } => {
                let until = until.max(now + CONTENTION);
                *record = Record { lease: Lease::Contended { pending: Some(holder) }, until };
                Some(holder)
            }
        };
        Some(Revocation { inode, holder, until })
    }

    /// Records that a holder has acknowledged a revocation.
    pub(super) fn revoked(&mut self, inode: InodeId, holder: NodeId, now: Duration) {
        if let Some(record) = self.records.get_mut(&inode)
            && matches!(record.lease, Lease::Contended { pending: Some(pending) } if pending == holder)
        {
            *record = Record { lease: Lease::Contended { pending: None }, until: now + CONTENTION };
        }
    }

    /// Revokes the leases on all names of a directory, whose entries move to other homes.
    pub(super) fn moved(&mut self, dir: InodeId, now: Duration) -> Vec<Revocation> {
        let is_in = |record: &Record| matches!(record.lease, Lease::Name { dir: of, .. } if of == dir);
        let inodes = self.records.iter().filter(|(_, record)| is_in(record)).map(|(inode, _)| *inode);
        let inodes: Vec<_> = inodes.collect();
        inodes.into_iter().filter_map(|inode| self.changed(inode, false, None, now)).collect()
    }

    /// Drops the leases of a failed node.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        let before = self.records.len();
        self.records.retain(|_, record| match record.lease {
            Lease::Name { holder, .. } => holder != node,
            Lease::Directory { node: one } => one != Some(node),
            Lease::Contended { pending } => pending != Some(node),
        });
        self.of_node.fetch_sub(before - self.records.len(), Ordering::Relaxed);
    }

    fn purge(&mut self, now: Duration) {
        while let Some(&(_, inode)) = self.order.front().filter(|(until, _)| *until <= now) {
            self.order.pop_front();
            match self.records.get(&inode).map(|record| record.until) {
                Some(until) if until > now => self.order.push_back((until, inode)),
                Some(_) => {
                    self.records.remove(&inode);
                    self.of_node.fetch_sub(1, Ordering::Relaxed);
                }
                None => {}
            }
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.of_node.fetch_sub(self.records.len(), Ordering::Relaxed);
    }
}

/// Returns the inodes whose names or links a step changes, and whether each is a directory.
pub(super) fn touched(step: &Step) -> Vec<(InodeId, bool)> {
    let of = |target: &tameike_core::wire::meta::Target| {
        (target.inode, target.kind == tameike_core::FileKind::Directory)
    };
    match step {
        Step::AddLink { inode } | Step::DropLink { inode } => vec![(*inode, false)],
        Step::Detach { target, .. } => vec![of(target)],
        Step::Attach { target, replaces, .. } => std::iter::once(target).chain(replaces).map(of).collect(),
        // The times of directories are not coherent.
        Step::Touch { target } if target.kind != tameike_core::FileKind::Directory => vec![of(target)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(7);
    const FILE: InodeId = InodeId(8);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);
    const START: Duration = Duration::from_secs(100);
    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn one_node_has_a_lease_which_changes_of_others_revoke() {
        let mut leases = Leases::default();
        assert!(leases.grant(FILE, DIR, A, START));
        assert!(!leases.grant(FILE, DIR, B, START));
        assert_eq!(leases.changed(FILE, false, Some(A), START), None);
        let revocation = leases.changed(FILE, false, Some(B), START + MOMENT);
        assert_eq!(revocation, Some(Revocation { inode: FILE, holder: Some(A), until: START + NAME_LEASE }));
        // Other changes during the revocation wait as well; a contended name is leased to no node.
        assert_eq!(leases.changed(FILE, false, Some(C), START + MOMENT), revocation);
        assert_eq!(leases.changed(FILE, false, Some(A), START + MOMENT), None);
        leases.revoked(FILE, B, START + 2 * MOMENT);
        assert_eq!(leases.changed(FILE, false, Some(C), START + CONTENTION + 2 * MOMENT), revocation);
        assert!(!leases.grant(FILE, DIR, B, START + CONTENTION + 2 * MOMENT));
        leases.revoked(FILE, A, START + 3 * MOMENT);
        assert_eq!(leases.changed(FILE, false, Some(C), START + 3 * MOMENT), None);
        assert!(!leases.grant(FILE, DIR, A, START + 3 * MOMENT));
        assert!(leases.grant(FILE, DIR, B, START + 3 * MOMENT + CONTENTION));
    }

    #[test]
    fn a_lease_that_cannot_be_revoked_must_expire() {
        let mut leases = Leases::default();
        assert!(leases.grant(FILE, DIR, A, START));
        let pending = Some(Revocation { inode: FILE, holder: Some(A), until: START + NAME_LEASE });
        for time in [MOMENT, 2 * CONTENTION, NAME_LEASE - MOMENT] {
            assert_eq!(leases.changed(FILE, false, Some(B), START + time), pending);
        }
        assert_eq!(leases.changed(FILE, false, Some(B), START + NAME_LEASE), None);
    }

    #[test]
    fn a_lease_expires_unless_its_holder_renews_it() {
        let mut leases = Leases::default();
        assert!(leases.grant(FILE, DIR, A, START));
        assert!(leases.grant(FILE, DIR, A, START + MOMENT));
        assert!(!leases.grant(FILE, DIR, B, START + NAME_LEASE));
        assert!(leases.grant(FILE, DIR, B, START + NAME_LEASE + MOMENT));
        assert_eq!(leases.changed(FILE, false, Some(A), START + 3 * NAME_LEASE), None);
    }

    #[test]
    fn a_change_of_a_directory_waits_for_caches_of_other_nodes() {
        let mut leases = Leases::default();
        leases.cached(DIR, A, START);
        assert_eq!(leases.changed(DIR, true, Some(A), START), None);
        let wait = |until| Some(Revocation { inode: DIR, holder: None, until });
        assert_eq!(leases.changed(DIR, true, Some(B), START), wait(START + DIRECTORY_CACHE_TIME));
        leases.cached(DIR, B, START + MOMENT);
        assert_eq!(
            leases.changed(DIR, true, Some(B), START + MOMENT),
            wait(START + MOMENT + DIRECTORY_CACHE_TIME)
        );
        assert_eq!(leases.changed(DIR, true, Some(B), START + 2 * DIRECTORY_CACHE_TIME), None);
    }

    #[test]
    fn moved_entries_and_failed_nodes_have_no_leases() {
        let mut leases = Leases::default();
        let other = InodeId(9);
        assert!(leases.grant(FILE, DIR, A, START) && leases.grant(other, InodeId(10), A, START));
        assert_eq!(leases.moved(DIR, START).len(), 1);
        leases.forget_node(A);
        assert_eq!(leases.changed(other, false, Some(B), START), None);
    }

    #[test]
    fn records_are_bounded_and_no_cached_directory_is_lost() {
        let mut leases = Leases::default();
        for inode in 0..LEASES_MAX as u64 {
            assert!(leases.grant(InodeId(100 + inode), DIR, A, START));
        }
        assert!(!leases.grant(FILE, DIR, A, START));
        leases.cached(DIR, A, START);
        assert!(leases.changed(DIR, true, Some(A), START + MOMENT).is_some());
        // Expired records free space.
        assert!(leases.grant(FILE, DIR, A, START + NAME_LEASE));
        assert_eq!(leases.records.len(), 1);
        assert_eq!(leases.order.len(), 1);
        assert_eq!(leases.of_node.load(Ordering::Relaxed), 1);
    }
}
