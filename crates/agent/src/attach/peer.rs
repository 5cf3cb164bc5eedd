//! The user on whose behalf an agent serves an attachment, and what that user may do.
//!
//! The user and the group in requests of the kernel count only if root attached: they are numbers of the mount's user namespace, and a user
//! chooses what they denote. For any other user, the agent takes the user and the groups of the process that attached.

use tameike_client::vfs::{has_setid, without_setid};
use tameike_core::attr::{AttrChange, S_ISGID, S_ISVTX, S_IXGRP, SetTime};
use tameike_core::wire::meta::NewInode;
use tameike_core::{Attr, Errno, FileKind, Result};

// Mode bits of one class.
pub(super) const READ: u16 = 4;
pub(super) const WRITE: u16 = 2;
pub(super) const SEARCH: u16 = 1;

/// What the agent relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Root: the kernel's numbers and checks count.
    Root,
    /// The user who runs the agent, and could read its store as well: the kernel's checks count.
    Owner,
    /// Nothing: the agent checks each request.
    Checked,
}

/// The user of an attachment.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    user: u32,
    group: u32,
    /// All groups of the process.
    groups: Vec<u32>,
    trust: Trust,
}

fn refuse<T>(errno: Errno) -> Result<T> {
    Err(errno.into())
}

impl Peer {
    /// The peer of an agent that `owner` runs.
    pub(super) fn new((user, group): (u32, u32), mut groups: Vec<u32>, owner: u32) -> Self {
        groups.push(group);
        let trust = match user {
            0 => Trust::Root,
            _ if user == owner => Trust::Owner,
            _ => Trust::Checked,
        };
        Self { user, group, groups, trust }
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Whether the agent must check what requests may do.
    pub(super) fn is_checked(&self) -> bool {
        self.trust == Trust::Checked
    }

    /// Gives a new inode the peer's user, and one of its groups.
    pub(super) fn own(&self, new: NewInode) -> NewInode {
        if self.trust == Trust::Root {
            return new;
        }
        let gid = if self.groups.contains(&new.gid) { new.gid } else { self.group };
        NewInode { uid: self.user, gid, ..new }
    }

    /// Fails with `EACCES` unless the mode bits permit an access.
    pub(super) fn may(&self, attr: &Attr, bits: u16) -> Result<()> {
        let class = if attr.uid == self.user {
            attr.mode >> 6
        } else if self.groups.contains(&attr.gid) {
            attr.mode >> 3
        } else {
            attr.mode
        };
        if class & bits == bits { Ok(()) } else { refuse(Errno::EACCES) }
    }

    pub(super) fn owns(&self, attr: &Attr) -> bool {
        attr.uid == self.user
    }

    /// Returns whether a removal of names from a directory depends on their files.
    pub(super) fn needs_own_file(&self, dir: &Attr) -> bool {
        dir.mode & S_ISVTX != 0 && !self.owns(dir)
    }

    /// Checks a new inode in a directory that permits it, and adapts its mode.
    pub(super) fn may_make(&self, dir: &Attr, new: NewInode) -> Result<NewInode> {
        if matches!(new.kind, FileKind::CharacterDevice | FileKind::BlockDevice) {
            return refuse(Errno::EPERM);
        }
        // The file gets the directory's group, of which the peer may be no member.
        let gets_foreign_group = dir.mode & S_ISGID != 0 && !self.groups.contains(&dir.gid);
        let is_program = new.kind == FileKind::File && new.mode & S_IXGRP != 0;
        let lost = if gets_foreign_group && is_program { S_ISGID } else { 0 };
        Ok(NewInode { mode: new.mode & !lost, ..new })
    }

    /// Checks a further name for a file, as the kernel does with `fs.protected_hardlinks`: other users keep no file alive that they could not write.
    pub(super) fn may_link(&self, attr: &Attr) -> Result<()> {
        let is_harmless = attr.kind == FileKind::File && !has_setid(attr.mode);
        let may = self.owns(attr) || (is_harmless && self.may(attr, READ | WRITE).is_ok());
        if may { Ok(()) } else { refuse(Errno::EPERM) }
    }

    /// Returns whether a change of attributes needs those that the file has now.
    pub(super) fn checks_change(&self, change: &AttrChange) -> bool {
        match self.trust {
            Trust::Root => false,
            Trust::Owner => change.uid.is_some() || change.gid.is_some(),
            Trust::Checked => true,
        }
    }

    /// Checks a change of a file with these attributes, and adapts it. With `is_writing` the peer has the file open for writing.
    pub(super) fn may_change(&self, attr: &Attr, change: AttrChange, is_writing: bool) -> Result<AttrChange> {
        let AttrChange { mode, uid, gid, size, atime, mtime, layout } = &change;
        if uid.is_some() || gid.is_some() {
            let is_own_group = |gid: u32| gid == attr.gid || self.groups.contains(&gid);
            let is_kept = uid.is_none_or(|uid| uid == attr.uid) && gid.is_none_or(is_own_group);
            if !self.owns(attr) || !is_kept {
                return refuse(Errno::EPERM);
            }
        }
        if !self.is_checked() {
            return Ok(change);
        }
        let may_write = || if is_writing { Ok(()) } else { self.may(attr, WRITE) };
        if size.is_some() {
            may_write()?;
        }
        let sets_time = [atime, mtime].into_iter().flatten().any(|time| matches!(time, SetTime::To(_)));
        if (sets_time || layout.is_some()) && !self.owns(attr) {
            return refuse(Errno::EPERM);
        }
        if (atime.is_some() || mtime.is_some()) && !self.owns(attr) {
            may_write()?;
        }
        match *mode {
            // A write takes the bits away.
            Some(mode) if !self.owns(attr) && mode == without_setid(attr.mode) => {
                may_write()?;
                Ok(change)
            }
            Some(_) if !self.owns(attr) => refuse(Errno::EPERM),
            Some(mode) => {
                let gid = gid.unwrap_or(attr.gid);
                let is_foreign = attr.kind != FileKind::Directory && !self.groups.contains(&gid);
                let lost = if is_foreign { S_ISGID } else { 0 };
                Ok(AttrChange { mode: Some(mode & !lost), ..change })
            }
            None => Ok(change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::{Generation, InodeId, Layout, Timestamp};

    const OWNER: u32 = 1000;
    const OTHER: u32 = 2000;

    fn attr(kind: FileKind, mode: u16, uid: u32, gid: u32) -> Attr {
        let time = Timestamp::default();
        Attr {
            inode: InodeId(7),
            kind,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            generation: Generation(0),
            layout: Layout::Striped,
            inline: false,
            sparse: false,
        }
    }

    fn file(mode: u16, uid: u32, gid: u32) -> Attr {
        attr(FileKind::File, mode, uid, gid)
    }

    fn peer(user: u32) -> Peer {
        Peer::new((user, user), vec![50, 51], OWNER)
    }

    fn new_inode(kind: FileKind, mode: u16, uid: u32, gid: u32) -> NewInode {
        NewInode { kind, mode, uid, gid, rdev: 0, layout: Layout::default(), symlink: Vec::new() }
    }

    #[test]
    fn only_root_acts_as_other_users() {
        let made = |user, gid| {
            let new = peer(user).own(new_inode(FileKind::File, 0o644, 3, gid));
            (new.uid, new.gid)
        };
        assert_eq!([made(0, 9), made(OWNER, 9)], [(3, 9), (OWNER, OWNER)]);
        assert_eq!([made(OTHER, 9), made(OTHER, 51)], [(OTHER, OTHER), (OTHER, 51)]);
        let checked = [0, OWNER, OTHER].map(|user| peer(user).is_checked());
        assert_eq!(checked, [false, false, true]);
    }

    #[test]
    fn one_class_of_mode_bits_applies() {
        let may = |mode, uid, gid, bits| peer(OTHER).may(&file(mode, uid, gid), bits).is_ok();
        assert!(may(0o400, OTHER, 9, READ) && !may(0o077, OTHER, 50, READ));
        assert!(may(0o060, 9, 50, READ | WRITE) && !may(0o707, 9, 51, READ));
        assert!(may(0o001, 9, 9, SEARCH) && !may(0o776, 9, 9, SEARCH) && !may(0o004, 9, 9, READ | WRITE));
        assert!(may(0o070, 9, OTHER, SEARCH), "the primary group counts");
    }

    fn changed(
        user: u32,
        attr: &Attr,
        change: AttrChange,
        is_writing: bool,
    ) -> std::result::Result<AttrChange, Errno> {
        let peer = peer(user);
        if !peer.checks_change(&change) {
            return Ok(change);
        }
        peer.may_change(attr, change, is_writing).map_err(|fault| fault.errno)
    }

    #[test]
    fn files_change_hands_only_within_groups_of_their_owner() {
        let to = |uid, gid| AttrChange { uid, gid, ..AttrChange::default() };
        for user in [OWNER, OTHER] {
            let own = file(0o644, user, 9);
            let changed = |change| changed(user, &own, change, false);
            assert_eq!(changed(to(Some(9), None)), Err(Errno::EPERM));
            assert_eq!(changed(to(None, Some(8))), Err(Errno::EPERM));
            assert!(
                [to(Some(user), Some(50)), to(None, Some(9))]
                    .into_iter()
                    .all(|change| changed(change).is_ok())
            );
        }
        assert_eq!(changed(OTHER, &file(0o666, 9, 50), to(None, Some(50)), true), Err(Errno::EPERM));
        assert!(changed(0, &file(0o600, 9, 9), to(Some(8), Some(8)), false).is_ok());
    }

    #[test]
    fn attributes_of_files_of_others_change_only_by_writes() {
        let none = AttrChange::default;
        let [now, past] = [SetTime::Now, SetTime::To(Timestamp::default())];
        let (public, private) = (file(0o4666, 9, 9), file(0o4644, 9, 9));
        let refused = |attr: &Attr, change: AttrChange| changed(OTHER, attr, change, false).err();
        let mode = |mode| AttrChange { mode: Some(mode), ..none() };
        let truncated = || AttrChange { size: Some(0), ..none() };
        assert_eq!(
            [refused(&public, truncated()), refused(&private, truncated())],
            [None, Some(Errno::EACCES)]
        );
        assert!(changed(OTHER, &private, truncated(), true).is_ok(), "the file is open for writing");
        assert_eq!(refused(&public, AttrChange { mtime: Some(now), ..none() }), None);
        assert_eq!(refused(&private, AttrChange { mtime: Some(now), ..none() }), Some(Errno::EACCES));
        assert_eq!(refused(&public, AttrChange { atime: Some(past), ..none() }), Some(Errno::EPERM));
        assert_eq!(
            [refused(&public, mode(0o666)), refused(&public, mode(0o4777))],
            [None, Some(Errno::EPERM)]
        );
        assert_eq!(refused(&private, mode(0o644)), Some(Errno::EACCES));
        let own = |change| changed(OTHER, &file(0o644, OTHER, 9), change, false).map(|change| change.mode);
        assert_eq!([own(mode(0o6755)), own(mode(0o755))], [Ok(Some(0o4755)), Ok(Some(0o755))]);
    }

    #[test]
    fn directories_limit_new_files_and_removals() {
        let dir = |mode, uid, gid| attr(FileKind::Directory, mode, uid, gid);
        let peer = peer(OTHER);
        let made =
            |dir: &Attr, kind, mode| peer.may_make(dir, new_inode(kind, mode, 0, 0)).map(|new| new.mode);
        let (foreign, own) = (dir(0o2777, 9, 9), dir(0o2777, 9, 50));
        assert_eq!(made(&foreign, FileKind::File, 0o2755), Ok(0o755));
        assert_eq!(made(&foreign, FileKind::Directory, 0o2755), Ok(0o2755));
        assert_eq!(made(&own, FileKind::File, 0o2755), Ok(0o2755));
        assert!(made(&own, FileKind::CharacterDevice, 0o600).is_err());
        let linked = [file(0o600, OTHER, 9), file(0o666, 9, 9), file(0o644, 9, 9), file(0o4666, 9, 9)];
        assert_eq!(linked.map(|attr| peer.may_link(&attr).is_ok()), [true, true, false, false]);
        let sticky = [dir(0o1777, 9, 9), dir(0o777, 9, 9), dir(0o1777, OTHER, 9)];
        assert_eq!(sticky.map(|dir| peer.needs_own_file(&dir)), [true, false, false]);
    }
}
