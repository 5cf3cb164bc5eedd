//! Names that this node answers for by itself, as their homes allow it (a lease).
//!
//! What is held ends when the home says that another node has changed it, when this node changes it, and after
//! [`NAME_LEASE`]. An answer that was under way meanwhile may be older than the change, and is not held.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tameike_core::limits::{HELD_NAMES_MAX, NAME_LEASE};
use tameike_core::wire::meta::EntryName;
use tameike_core::{Attr, InodeId};

/// When a home was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    time: Duration,
    changes: u64,
}

struct HeldName {
    entry: EntryName,
    attr: Attr,
    until: Duration,
}

#[derive(Default)]
struct Names {
    inodes: BTreeMap<EntryName, InodeId>,
    held: BTreeMap<InodeId, HeldName>,
    /// By age; also what is not held any more.
    order: VecDeque<(Duration, InodeId)>,
    /// Counts what ended, or would have ended, a lease.
    changes: u64,
}

impl Names {
    fn remove(&mut self, inode: InodeId) {
        if let Some(name) = self.held.remove(&inode) {
            self.inodes.remove(&name.entry);
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
    /// To be taken before a home is asked, at `time`.
    pub(super) fn asking(&self, time: Duration) -> Asked {
        Asked { time, changes: self.0.lock().changes }
    }

    /// Holds a name with the attributes of its inode, as a home has answered.
    pub(super) fn hold(&self, entry: EntryName, attr: Attr, asked: Asked) {
        let mut names = self.0.lock();
        if names.changes != asked.changes {
            return;
        }
        names.make_room(asked.time);
        let (inode, until) = (attr.inode, asked.time + NAME_LEASE);
        names.remove(inode);
        if let Some(old) = names.inodes.insert(entry.clone(), inode) {
            names.held.remove(&old);
        }
        names.held.insert(inode, HeldName { entry, attr, until });
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

    /// An inode has changed, or its name.
    pub(super) fn changed(&self, inode: InodeId) {
        let mut names = self.0.lock();
        names.changes += 1;
        names.remove(inode);
    }

    /// What a name says has changed.
    pub(super) fn renamed(&self, entry: &EntryName) {
        let mut names = self.0.lock();
        names.changes += 1;
        if let Some(inode) = names.inodes.get(entry).copied() {
            names.remove(inode);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tameike_core::{FileKind, Generation, Layout, Timestamp};

    const NOW: Duration = Duration::from_secs(50);

    fn entry(number: u64) -> EntryName {
        EntryName { dir: InodeId(1), name: number.to_string().into_bytes() }
    }

    /// Attributes of an inode that is nothing special.
    pub(in crate::shared) fn attr(number: u64) -> Attr {
        let zero = Timestamp::default();
        Attr {
            inode: InodeId(number),
            kind: FileKind::File,
            mode: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            generation: Generation(1),
            layout: Layout::Striped,
            inline: true,
            sparse: false,
        }
    }

    #[test]
    fn a_name_is_held_until_it_changes_or_its_time_is_over() {
        let names = HeldNames::default();
        for number in 2..6 {
            names.hold(entry(number), attr(number), names.asking(NOW));
        }
        assert_eq!(names.find(&entry(2), NOW), Some(attr(2)));
        assert_eq!(names.attr(InodeId(3), NOW), Some(attr(3)));
        names.renamed(&entry(2));
        names.changed(InodeId(3));
        for number in [2, 3] {
            assert_eq!(names.find(&entry(number), NOW), None);
            assert_eq!(names.attr(InodeId(number), NOW), None);
        }
        assert_eq!(names.find(&entry(4), NOW + NAME_LEASE), None);
        assert!(names.find(&entry(4), NOW + NAME_LEASE - Duration::from_nanos(1)).is_some());
    }

    #[test]
    fn an_answer_older_than_a_change_is_not_held() {
        let names = HeldNames::default();
        let asked = names.asking(NOW);
        names.changed(InodeId(9));
        names.hold(entry(2), attr(2), asked);
        assert_eq!(names.find(&entry(2), NOW), None);
    }

    #[test]
    fn a_name_that_says_another_inode_forgets_the_first() {
        let names = HeldNames::default();
        names.hold(entry(2), attr(2), names.asking(NOW));
        names.hold(entry(2), attr(3), names.asking(NOW));
        names.hold(entry(4), attr(3), names.asking(NOW));
        assert_eq!(names.attr(InodeId(2), NOW), None);
        assert_eq!(names.find(&entry(2), NOW), None);
        assert_eq!(names.find(&entry(4), NOW), Some(attr(3)));
    }

    #[test]
    fn the_oldest_make_room() {
        let names = HeldNames::default();
        for number in 0..HELD_NAMES_MAX as u64 + 10 {
            names.hold(entry(number), attr(number), names.asking(NOW));
        }
        assert_eq!(names.find(&entry(9), NOW), None);
        assert!(names.find(&entry(HELD_NAMES_MAX as u64 + 9), NOW).is_some());
        assert!(names.0.lock().held.len() <= HELD_NAMES_MAX);
    }
}
