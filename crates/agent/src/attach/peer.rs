//! The user on whose behalf an agent serves an attachment, and what that user may do.
//!
//! The user and the group in requests of the kernel count only if root attached: they are numbers of the mount's user namespace, and a user
//! chooses what they denote. For any other user, the agent takes the user and the groups of the process that attached.

use tameike_client::vfs::without_setid;
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
