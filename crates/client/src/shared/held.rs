//! Names that this node answers for by itself, as their homes allow it (a lease).
//!
//! What is held ends when the home says that another node has changed it, when this node changes it, and after
//! [`NAME_LEASE`]. An answer that was under way meanwhile may be older than the change, and is not held.
//!
//! Of what is held programs may be shown what they would be told if they asked. It is hidden before it is not held any more.

use super::shown::Shown;
use crate::data::Access;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tameike_core::limits::{HELD_NAMES_MAX, NAME_LEASE};
use tameike_core::wire::meta::EntryName;
use tameike_core::{Attr, InodeId};

/// Counts of changes, each of some of the inodes: an answer is not held if there may have been one to what it is about.
const CHANGES: usize = 32;

/// When a home was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    time: Duration,
    changes: [u32; CHANGES],
    accesses: [u32; CHANGES],
}

struct HeldName {
    entry: EntryName,
    attr: Attr,
    until: Duration,
    /// Whether programs may have been shown it.
    is_shown: bool,
}

#[derive(Default)]
struct Names {
    inodes: BTreeMap<EntryName, InodeId>,
    held: BTreeMap<InodeId, HeldName>,
    /// By age; also what is not held any more.
    order: VecDeque<(Duration, InodeId)>,
    /// Count what ended, or would have ended, a lease.
    changes: [u32; CHANGES],
    /// Count accesses that from then on nobody but a home, and what is held, tells of.
    accesses: [u32; CHANGES],
    /// Where programs are shown names, if anywhere.
    shown: Option<Shown>,
}

/// Which count is that of an inode.
fn count_of(inode: InodeId) -> usize {
    (inode.0 % CHANGES as u64) as usize
}

impl Names {
    fn count(&mut self, inode: InodeId) {
        let count = &mut self.changes[count_of(inode)];
        *count = count.wrapping_add(1);
    }

    fn remove(&mut self, inode: InodeId) {
        self.hide(inode);
        if let Some(name) = self.held.remove(&inode) {
            self.inodes.remove(&name.entry);
        }
    }

    fn hide(&mut self, inode: InodeId) {
        if let (Some(name), Some(shown)) = (self.held.get_mut(&inode), &self.shown)
            && std::mem::replace(&mut name.is_shown, false)
        {
            shown.hide(&name.entry);
        }
    }

    fn make_room(&mut self, now: Duration) {
        let is_full = |names: &Self| names.order.len() >= HELD_NAMES_MAX;
        while let Some(&(until, inode)) =
            self.order.front().filter(|(until, _)| *until <= now || is_full(self))
        {
            self.order.pop_front();
            if self.held.get(&inode).is_some_and(|name| name.until == until) {
                self.remove(inode);
            }
        }
    }
}

/// The names held by a view. Times are of the monotonic clock.
#[derive(Default)]
pub(super) struct HeldNames(Mutex<Names>);

impl HeldNames {
    /// To be taken before a home is asked, or what is held is looked at, at `time`.
    pub(super) fn asking(&self, time: Duration) -> Asked {
        let names = self.0.lock();
        Asked { time, changes: names.changes, accesses: names.accesses }
    }

    /// Whether attributes of an inode may lack an access that this node has shown: they were had after `asked`, and
    /// [completed](super::SharedView::complete) when a home had just been told of it.
    pub(super) fn is_overtaken(&self, inode: InodeId, asked: &Asked) -> bool {
        let count = count_of(inode);
        self.0.lock().accesses[count] != asked.accesses[count]
    }

    /// Holds a name with the attributes of its inode, as a home has answered.
    pub(super) fn hold(&self, entry: EntryName, attr: Attr, asked: Asked) {
        let mut names = self.0.lock();
        let count = count_of(attr.inode);
        if names.changes[count] != asked.changes[count] {
            return;
        }
        names.make_room(asked.time);
        let (inode, until) = (attr.inode, asked.time + NAME_LEASE);
        names.remove(inode);
        if let Some(old) = names.inodes.insert(entry.clone(), inode) {
            names.hide(old);
            names.held.remove(&old);
        }
        names.held.insert(inode, HeldName { entry, attr, until, is_shown: false });
        names.order.push_back((until, inode));
    }

    /// Attributes of the inode that the name says, if the name is held.
    pub(super) fn find(&self, entry: &EntryName, now: Duration) -> Option<Attr> {
        let names = self.0.lock();
        let name = names.held.get(names.inodes.get(entry)?)?;
        (name.until > now).then(|| name.attr.clone())
    }

    /// Attributes of an inode, if its name is held.
    pub(super) fn attr(&self, inode: InodeId, now: Duration) -> Option<Attr> {
        let names = self.0.lock();
        let name = names.held.get(&inode)?;
        (name.until > now).then(|| name.attr.clone())
    }

    /// This node has written to a file, of which the home has told these attributes since.
    pub(super) fn wrote(&self, attr: Attr) {
        let mut names = self.0.lock();
        let inode = attr.inode;
        names.count(inode);
        // Those of no earlier version may be of a later moment.
        if names.held.get(&inode).is_some_and(|name| name.attr.generation < attr.generation) {
            names.hide(inode);
            if let Some(name) = names.held.get_mut(&inode) {
                name.attr = attr;
            }
        }
    }

    /// A home has been told of an access to an inode, which from now on is shown by what it tells. What is held of the inode goes on,
    /// with that access, where it is sure that the home has `taken` it.
    pub(super) fn accessed(&self, inode: InodeId, taken: Option<Access>) {
        let mut names = self.0.lock();
        names.count(inode);
        let count = &mut names.accesses[count_of(inode)];
        *count = count.wrapping_add(1);
        names.hide(inode);
        match (names.held.get_mut(&inode), taken) {
            (Some(name), Some(access)) if access.follows(name.attr.times()) => name.attr.atime = access.time,
            _ => names.remove(inode),
        }
    }

    /// Has names be shown from now on.
    pub(super) fn show_in(&self, shown: Shown) {
        self.0.lock().shown = Some(shown);
    }

    /// Shows the name of an inode while it is held, if `complete` makes of its attributes those that programs are told.
    pub(super) fn show(&self, inode: InodeId, complete: impl FnOnce(&mut Attr) -> bool) {
        let mut names = self.0.lock();
        let Names { held, shown, .. } = &mut *names;
        let (Some(shown), Some(name)) =
            (shown.as_ref().filter(|shown| shown.is_used()), held.get_mut(&inode))
        else {
            return;
        };
        let mut attr = name.attr.clone();
        if complete(&mut attr) {
            name.is_shown = shown.show(&name.entry, attr, name.until);
        }
    }

    /// Programs are shown the name of an inode no more, and have to ask.
    pub(super) fn hide(&self, inode: InodeId) {
        self.0.lock().hide(inode);
    }

    /// An inode has changed, or its name.
    pub(super) fn changed(&self, inode: InodeId) {
        let mut names = self.0.lock();
        names.count(inode);
        names.remove(inode);
    }

    /// What a name says has changed.
    pub(super) fn renamed(&self, entry: &EntryName) {
        let mut names = self.0.lock();
        // Of which inode is not known for sure.
        names.changes.iter_mut().for_each(|count| *count = count.wrapping_add(1));
        if let Some(inode) = names.inodes.get(entry).copied() {
            names.remove(inode);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
