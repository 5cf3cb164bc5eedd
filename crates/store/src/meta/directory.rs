//! Directories: entries, and the home's record of each directory's children.

use super::record::{self, DirectoryRecord, InodeRecord};
use super::{Outcome, Shard, key, query};
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_core::wire::meta::{EntryName, NewInode, Target};
use tameike_core::{
    DirOffset, Errno, Fault, FileKind, Generation, InodeId, Layout, OperationId, Result, Timestamp, name,
};

/// Number of the inode that is created with an entry: in the entry's slot, or pinned if its directory is.
#[must_use]
pub fn new_inode_id(entry: &EntryName, sharded: bool, counter: u64) -> InodeId {
    match entry.dir.pinned_node() {
        Some(node) => InodeId::pinned(node, counter),
        None if sharded => InodeId::in_slot(entry.offset().slot(), counter),
        None => InodeId::in_slot(entry.dir.children_slot(), counter),
    }
}

/// Subtracts entries with this `target` from the counts.
fn subtract_counts(children: &mut DirectoryRecord, entries: u64, target: Target) -> Result<()> {
    let wrong = || Fault::io("the counts of a directory are smaller than its number of entries");
    children.entries = children.entries.checked_sub(entries).ok_or_else(wrong)?;
    let subdirs = u64::from(target.kind == FileKind::Directory);
    children.subdirs = children.subdirs.checked_sub(subdirs).ok_or_else(wrong)?;
    Ok(())
}

impl Shard<'_> {
    /// The home's record of `dir`, or a new one.
    fn children(&self, dir: InodeId, sharded: bool) -> Result<DirectoryRecord> {
        let fresh = DirectoryRecord { sharded, ..DirectoryRecord::default() };
        Ok(query::directory(self.table, dir)?.unwrap_or(fresh))
    }

    /// As [`Self::children`], for a directory that gets entries or is sealed. `ENOENT` if it was removed.
    fn children_to_change(&self, dir: InodeId, sharded: bool) -> Result<DirectoryRecord> {
        match query::directory(self.table, dir)? {
            Some(children) => Ok(children),
            None if query::is_gone(self.table, dir)? => Err(Errno::ENOENT.into()),
            None => self.children(dir, sharded),
        }
    }

    /// Drops the sealed record of a directory that lost its name; its inode now says that it is removed.
    pub(super) fn forget_children(&mut self, dir: InodeId) -> Result<()> {
        if query::directory(self.table, dir)?.is_some_and(|children| children.sealed.is_some()) {
            self.table.delete(key::directory(dir));
        }
        Ok(())
    }

    fn put_children(&mut self, dir: InodeId, children: &DirectoryRecord) -> Result<()> {
        record::put(self.table, key::directory(dir), children)
    }

    pub(super) fn create(
        &mut self,
        entry: &EntryName,
        new: &NewInode,
        exclusive: bool,
        sharded: bool,
        inode_counter: u64,
        now: Timestamp,
    ) -> Result<Outcome> {
        name::check(&entry.name)?;
        let children = self.children(entry.dir, sharded)?;
        if children.sharded != sharded {
            return Ok(Outcome::Sharding { sharded: children.sharded });
        }
        if let Some(target) = query::entry(self.table, entry)? {
            return if exclusive { Err(Errno::EEXIST.into()) } else { Ok(Outcome::Found { target }) };
        }
        let inode = new_inode_id(entry, sharded, inode_counter);
        let record = self.new_inode(inode, entry.dir, new, now)?;
        let target = Target { inode, kind: new.kind };
        self.attach(entry, sharded, target, None, now)?;
        Ok(Outcome::Created { target, attr: record.attr(inode) })
    }

    fn new_inode(
        &mut self,
        inode: InodeId,
        parent: InodeId,
        new: &NewInode,
        now: Timestamp,
    ) -> Result<InodeRecord> {
        let is_link = new.kind == FileKind::Symlink;
        if is_link == new.symlink.is_empty() {
            return Err(if is_link { Errno::ENOENT } else { Errno::EINVAL }.into());
        }
        if new.symlink.len() > PATH_SIZE_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        if new.kind == FileKind::File && new.layout == Layout::Local {
            return Err(Errno::EINVAL.into());
        }
        let record = InodeRecord {
            kind: new.kind,
            mode: new.mode & 0o7777,
            links: 1,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: new.symlink.len() as u64,
            atime: now,
            mtime: now,
            ctime: now,
            generation: Generation::default(),
            layout: new.layout,
            inline: new.kind == FileKind::File,
            sparse: false,
            parent,
        };
        if is_link {
            self.table.put(key::content(inode), new.symlink.clone());
        }
        self.put_inode(inode, &record)?;
        self.inodes[inode.view().index()] += 1;
        Ok(record)
    }

    /// Sets the target of a name, which must have been `replaces`.
    pub(super) fn attach(
        &mut self,
        entry: &EntryName,
        sharded: bool,
        target: Target,
        replaces: Option<Target>,
        now: Timestamp,
    ) -> Result<()> {
        name::check(&entry.name)?;
        let mut children = self.children_to_change(entry.dir, sharded)?;
        match query::inode(self.table, entry.dir)? {
            Some(dir) if dir.kind != FileKind::Directory => return Err(Errno::ENOTDIR.into()),
            _ if children.sealed.is_some() => return Err(Errno::ENOENT.into()),
            _ => (),
        }
        if children.sharded != sharded || query::entry(self.table, entry)? != replaces {
            return Err(Errno::EAGAIN.into());
        }
        match replaces {
            Some(old) => subtract_counts(&mut children, 0, old)?,
            None => {
                children.entries += 1;
                self.grown = Some((entry.dir, children.entries));
            }
        }
        children.subdirs += u64::from(target.kind == FileKind::Directory);
        children.changed = children.changed.max(now);
        record::put(self.table, key::entry(entry), &target)?;
        self.put_children(entry.dir, &children)
    }

    /// Removes a name whose target must be `target`.
    pub(super) fn detach(
        &mut self,
        entry: &EntryName,
        sharded: bool,
        target: Target,
        now: Timestamp,
    ) -> Result<()> {
        let mut children = self.children(entry.dir, sharded)?;
        if children.sharded != sharded || query::entry(self.table, entry)? != Some(target) {
            return Err(Errno::EAGAIN.into());
        }
        subtract_counts(&mut children, 1, target)?;
        children.changed = children.changed.max(now);
        self.table.delete(key::entry(entry));
        self.put_children(entry.dir, &children)
    }

    /// Seals an empty directory against new entries. `EAGAIN` if another operation has sealed it.
    pub(super) fn seal(&mut self, dir: InodeId, sharded: bool, operation: OperationId) -> Result<()> {
        let mut children = self.children_to_change(dir, sharded)?;
        if children.sharded != sharded || children.sealed.is_some() {
            return Err(Errno::EAGAIN.into());
        }
        if children.entries > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        children.sealed = Some(operation);
        self.put_children(dir, &children)
    }

    pub(super) fn unseal(&mut self, dir: InodeId, operation: OperationId) -> Result<()> {
        match query::directory(self.table, dir)? {
            Some(mut children) if children.sealed == Some(operation) => {
                children.sealed = None;
                self.put_children(dir, &children)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn set_dir_time(
        &mut self,
        dir: InodeId,
        sharded: bool,
        changed: Timestamp,
    ) -> Result<Outcome> {
        let Some(mut children) = query::directory(self.table, dir)? else { return Ok(Outcome::Done) };
        if children.sharded != sharded {
            return Ok(Outcome::Sharding { sharded: children.sharded });
        }
        children.changed = changed;
        self.put_children(dir, &children)?;
        Ok(Outcome::Done)
    }

    /// Adds entries that moved here because their directory is being sharded.
    pub(super) fn receive(&mut self, dir: InodeId, entries: &[(serde_bytes::ByteBuf, Target)]) -> Result<()> {
        let mut children = self.children(dir, true)?;
        for (name, target) in entries {
            let entry = EntryName { dir, name: name.to_vec() };
            if query::entry(self.table, &entry)?.is_some() {
                return Err(Fault::io(format!("an entry of directory {dir} moved here twice")));
            }
            children.entries += 1;
            children.subdirs += u64::from(target.kind == FileKind::Directory);
            record::put(self.table, key::entry(&entry), target)?;
        }
        self.put_children(dir, &children)
    }

    /// Marks the directory as sharded, and drops entries whose slots belong to other homes.
    pub(super) fn finish_sharding(&mut self, dir: InodeId) -> Result<()> {
        let share = query::share(self.table)?;
        let mut children = self.children(dir, true)?;
        children.sharded = true;
        let (entries, _) = query::entries(self.table, dir, DirOffset::START, usize::MAX - 1)?;
        for entry in entries {
            if share.keeps_slot(entry.offset.slot()) {
                continue;
            }
            subtract_counts(&mut children, 1, entry.target)?;
            self.table.delete(key::entry(&EntryName { dir, name: entry.name }));
        }
        self.put_children(dir, &children)
    }
}
