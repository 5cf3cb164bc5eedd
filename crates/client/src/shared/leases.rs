//! Dentry leases: the homes permit this node to answer lookups of these names from its cache.
//!
//! A lease ends when the home revokes it, when this node changes the inode or name, and after [`NAME_LEASE`]. A reply in flight during a
//! change may predate it and is not cached. It also ends when its home moves to another node, or when this node's lease of the home map ends:
//! the home, or its next primary, may then have dropped it.
//!
//! Leased names may be published to programs (see [`Shown`]). A name is hidden before its lease ends.

use super::shown::Shown;
use crate::data::Access;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::{DENTRY_LEASES_MAX, NAME_LEASE};
use tameike_core::wire::meta::EntryName;
use tameike_core::{Attr, InodeId};
use tameike_fabric::MapLease;

/// Number of change counters. Inodes share counters; a reply is not cached if the counter of its inode changed while it was in flight.
const CHANGES: usize = 32;

/// Time and counters at the start of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestStart {
    time: Duration,
    changes: [u32; CHANGES],
    accesses: [u32; CHANGES],
}

struct NameLease {
    entry: EntryName,
    attr: Attr,
    until: Duration,
    /// True if the name may be published to programs.
    is_shown: bool,
}

impl NameLease {
    fn is_valid(&self, map: &MapLease, now: Duration) -> bool {
        self.until > now && map.covers(self.until.saturating_sub(NAME_LEASE))
    }
}

#[derive(Default)]
struct Names {
    inodes: BTreeMap<EntryName, InodeId>,
    leases: BTreeMap<InodeId, NameLease>,
    /// Expiry times, oldest first; includes leases that have ended.
    order: VecDeque<(Duration, InodeId)>,
    /// Count events that end a lease, whether or not one was held.
    changes: [u32; CHANGES],
    /// Count accesses that have been sent to the home: from then on only the home's attributes and the leases include them.
    accesses: [u32; CHANGES],
    /// None if names are not published.
    shown: Option<Shown>,
}

fn count_of(inode: InodeId) -> usize {
    (inode.0 % CHANGES as u64) as usize
}

impl Names {
    fn count(&mut self, inode: InodeId) {
        let count = &mut self.changes[count_of(inode)];
        *count = count.wrapping_add(1);
    }

    fn count_all(&mut self) {
        self.changes.iter_mut().for_each(|count| *count = count.wrapping_add(1));
    }

    fn remove(&mut self, inode: InodeId) {
        self.hide(inode);
        if let Some(name) = self.leases.remove(&inode) {
            self.inodes.remove(&name.entry);
        }
    }

    fn hide(&mut self, inode: InodeId) {
        if let (Some(name), Some(shown)) = (self.leases.get_mut(&inode), &self.shown)
            && std::mem::replace(&mut name.is_shown, false)
        {
            shown.hide(&name.entry);
        }
    }

    fn evict_old(&mut self, now: Duration) {
        let is_full = |names: &Self| names.order.len() >= DENTRY_LEASES_MAX;
        while let Some(&(until, inode)) =
            self.order.front().filter(|(until, _)| *until <= now || is_full(self))
        {
            self.order.pop_front();
            if self.leases.get(&inode).is_some_and(|name| name.until == until) {
                self.remove(inode);
            }
        }
    }
}

/// Leased names of a view. Times are monotonic.
pub(super) struct NameLeases {
    names: Mutex<Names>,
    /// The lease of the home map, without which no other counts.
    map: Arc<MapLease>,
}

impl NameLeases {
    pub(super) fn new(map: Arc<MapLease>) -> Self {
        Self { names: Mutex::default(), map }
    }

    /// Captures the counters. Call it before a request or a read of the cache, at `time`.
    pub(super) fn start_request(&self, time: Duration) -> RequestStart {
        let names = self.names.lock();
        RequestStart { time, changes: names.changes, accesses: names.accesses }
    }

    /// Returns true if attributes of an inode, requested at `start` or later, may lack an access of this node: the access went to the home
    /// before [`complete`](super::SharedView::complete) could add it.
    pub(super) fn is_overtaken(&self, inode: InodeId, start: &RequestStart) -> bool {
        let count = count_of(inode);
        self.names.lock().accesses[count] != start.accesses[count]
    }

    /// Caches a name and its inode's attributes from a home's reply, unless a change may have overtaken the reply.
    pub(super) fn add(&self, entry: EntryName, attr: Attr, start: RequestStart) {
        let mut names = self.names.lock();
        let count = count_of(attr.inode);
        if names.changes[count] != start.changes[count] {
            return;
        }
        names.evict_old(start.time);
        let (inode, until) = (attr.inode, start.time + NAME_LEASE);
        names.remove(inode);
        if let Some(old) = names.inodes.insert(entry.clone(), inode) {
            names.hide(old);
            names.leases.remove(&old);
        }
        names.leases.insert(inode, NameLease { entry, attr, until, is_shown: false });
        names.order.push_back((until, inode));
    }

    /// Returns the attributes of the inode that the name refers to, if the name is leased.
    pub(super) fn find(&self, entry: &EntryName, now: Duration) -> Option<Attr> {
        let names = self.names.lock();
        let name = names.leases.get(names.inodes.get(entry)?)?;
        name.is_valid(&self.map, now).then(|| name.attr.clone())
    }

    pub(super) fn attr(&self, inode: InodeId, now: Duration) -> Option<Attr> {
        let names = self.names.lock();
        let name = names.leases.get(&inode)?;
        name.is_valid(&self.map, now).then(|| name.attr.clone())
    }

    /// Replaces the attributes after writes by this node with those that the home has reported since.
    pub(super) fn wrote(&self, attr: Attr) {
        let mut names = self.names.lock();
        let inode = attr.inode;
        names.count(inode);
        // Leased attributes of the same or a later generation may be newer: keep them.
        if names.leases.get(&inode).is_some_and(|name| name.attr.generation < attr.generation) {
            names.hide(inode);
            if let Some(name) = names.leases.get_mut(&inode) {
                name.attr = attr;
            }
        }
    }

    /// Records that an access was sent to the home. The lease continues with the new access time only if the home has certainly `taken` it.
    pub(super) fn accessed(&self, inode: InodeId, taken: Option<Access>) {
        let mut names = self.names.lock();
        names.count(inode);
        let count = &mut names.accesses[count_of(inode)];
        *count = count.wrapping_add(1);
        names.hide(inode);
        match (names.leases.get_mut(&inode), taken) {
            (Some(name), Some(access)) if access.follows(name.attr.times()) => name.attr.atime = access.time,
            _ => names.remove(inode),
        }
    }

    pub(super) fn show_in(&self, shown: Shown) {
        shown.limit(self.map.end());
        self.names.lock().shown = Some(shown);
    }

    /// Lets programs use published names until the end of the lease of the home map, which was renewed. `continues` is false if the node did
    /// not have the lease: names that it published before end.
    pub(super) fn map_renewed(&self, continues: bool) {
        if !continues {
            self.hide_all();
        }
        if let Some(shown) = &self.names.lock().shown {
            shown.limit(self.map.end());
        }
    }

    /// Publishes the name of an inode if it is leased and `complete` can fill in the attributes that programs see. They get the name until the
    /// end of both leases, or until [`Self::hide_all`].
    pub(super) fn show(&self, inode: InodeId, complete: impl FnOnce(&mut Attr) -> bool) {
        let mut names = self.names.lock();
        let Names { leases, shown, .. } = &mut *names;
        let (Some(shown), Some(name)) =
            (shown.as_ref().filter(|shown| shown.is_used()), leases.get_mut(&inode))
        else {
            return;
        };
        let mut attr = name.attr.clone();
        if self.map.covers(name.until.saturating_sub(NAME_LEASE)) && complete(&mut attr) {
            name.is_shown = shown.show(&name.entry, attr, name.until);
        }
    }

    /// Hides the name of an inode: programs must send requests for it.
    pub(super) fn hide(&self, inode: InodeId) {
        self.names.lock().hide(inode);
    }

    /// Hides all names.
    pub(super) fn hide_all(&self) {
        let mut names = self.names.lock();
        let shown = names.leases.iter().filter(|(_, name)| name.is_shown);
        let shown: Vec<_> = shown.map(|(inode, _)| *inode).collect();
        shown.into_iter().for_each(|inode| names.hide(inode));
    }

    /// Ends the lease after a change of the inode or its name.
    pub(super) fn changed(&self, inode: InodeId) {
        let mut names = self.names.lock();
        names.count(inode);
        names.remove(inode);
    }

    /// Ends the lease on a name that now refers to another inode, or none.
    pub(super) fn renamed(&self, entry: &EntryName) {
        let mut names = self.names.lock();
        // The inode is not known for certain, so every counter changes.
        names.count_all();
        if let Some(inode) = names.inodes.get(entry).copied() {
            names.remove(inode);
        }
    }

    /// Ends the leases on inodes whose homes have moved to other nodes.
    pub(super) fn homes_moved(&self, is_moved: impl Fn(InodeId) -> bool) {
        let mut names = self.names.lock();
        // Replies in flight may be those of the earlier primaries.
        names.count_all();
        let moved: Vec<_> = names.leases.keys().copied().filter(|inode| is_moved(*inode)).collect();
        moved.into_iter().for_each(|inode| names.remove(inode));
    }
}

#[cfg(test)]
mod tests;
