//! Inodes: attributes, links, and removal.

use super::record::{self, InodeRecord, Truncation};
use super::{Outcome, Shard, key, query};
use tameike_core::attr::{AttrChange, S_ISGID, S_ISUID, S_IXGRP, SetTime};
use tameike_core::limits::{DIRECTORY_DEPTH_MAX, FILE_SIZE_MAX, LINKS_MAX};
use tameike_core::{Errno, Fault, FileKind, InodeId, Layout, Result, Timestamp};

impl Shard<'_> {
    pub(super) fn set_attr(
        &mut self,
        inode: InodeId,
        change: &AttrChange,
        now: Timestamp,
    ) -> Result<Outcome> {
        let mut record = self.inode(inode)?;
        if change.uid.is_some() || change.gid.is_some() {
            clear_privileges(&mut record);
        }
        record.uid = change.uid.unwrap_or(record.uid);
        record.gid = change.gid.unwrap_or(record.gid);
        if let Some(mode) = change.mode {
            record.mode = mode & 0o7777;
        }
        if let Some(layout) = change.layout {
            set_layout(&mut record, layout)?;
        }
        if let Some(size) = change.size {
            self.resize(inode, &mut record, size)?;
            record.mtime = now;
        }
        let time = |new| match new {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        record.atime = change.atime.map_or(record.atime, time);
        record.mtime = change.mtime.map_or(record.mtime, time);
        if *change != AttrChange::default() {
            record.ctime = now;
            self.put_inode(inode, &record)?;
        }
        Ok(Outcome::Changed { attr: record.attr(inode) })
    }

    /// Truncates a file, or extends it with zeros. `EFBIG` if inline content would no longer fit.
    fn resize(&mut self, inode: InodeId, record: &mut InodeRecord, size: u64) -> Result<()> {
        match record.kind {
            FileKind::File => (),
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        if record.inline {
            self.resize_inline(inode, record, size)?;
        } else if size < record.size || (size == record.size && record.sparse) {
            // Space may be reserved beyond the end.
            self.truncate_units(inode, Truncation { layout: record.layout, size })?;
        }
        record.sparse = size > 0 && (record.sparse || (size > record.size && !record.inline));
        record.size = size;
        record.generation = record.generation.next();
        Ok(())
    }

    /// Records that the homes of the file's units must truncate them. A pending truncation to a smaller size stays.
    pub(super) fn truncate_units(&mut self, inode: InodeId, truncation: Truncation) -> Result<()> {
        self.truncations.push((inode, truncation));
        let pending = query::truncation(self.table, inode)?;
        let size = pending.map_or(truncation.size, |pending| pending.size.min(truncation.size));
        record::put(self.table, key::truncation(inode), &Truncation { size, ..truncation })
    }

    pub(super) fn truncated(&mut self, inode: InodeId, truncation: Truncation) -> Result<Outcome> {
        let pending = query::truncation(self.table, inode)?;
        if pending == Some(truncation) {
            self.table.delete(key::truncation(inode));
        }
        Ok(Outcome::Done)
    }

    /// Updates access times where relatime requires it. Skips removed files.
    pub(super) fn accessed(&mut self, files: &[(InodeId, Timestamp)]) -> Result<Outcome> {
        for &(inode, time) in files {
            match query::inode(self.table, inode)? {
                Some(mut record) if record.times().counts(time) => {
                    record.atime = time;
                    self.put_inode(inode, &record)?;
                }
                _ => (),
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn add_link(&mut self, inode: InodeId, now: Timestamp) -> Result<()> {
        let mut record = self.inode(inode)?;
        match (record.kind, record.links) {
            (FileKind::Directory, _) => return Err(Errno::EPERM.into()),
            (_, 0) => return Err(Errno::ENOENT.into()),
            (_, LINKS_MAX..) => return Err(Errno::EMLINK.into()),
            _ => record.links += 1,
        }
        record.ctime = now;
        self.put_inode(inode, &record)
    }

    /// Drops a link. Never fails because of the inode's state: the operation is already decided.
    pub(super) fn drop_link(&mut self, inode: InodeId, now: Timestamp) -> Result<()> {
        let Some(mut record) = query::inode(self.table, inode)? else { return Ok(()) };
        record.links = record.links.saturating_sub(1);
        record.ctime = now;
        if record.kind == FileKind::Directory {
            self.forget_children(inode)?;
        }
        if record.links == 0 && !self.held.contains(&inode) {
            return self.remove(inode, &record);
        }
        if record.links == 0 {
            self.table.put(key::orphan(inode), Vec::new());
        }
        self.put_inode(inode, &record)
    }

    pub(super) fn forget(&mut self, inode: InodeId) -> Result<Outcome> {
        match query::inode(self.table, inode)? {
            Some(record) if record.links == 0 => self.remove(inode, &record)?,
            _ => (),
        }
        Ok(Outcome::Done)
    }

    fn remove(&mut self, inode: InodeId, record: &InodeRecord) -> Result<()> {
        let (start, end) = key::xattrs(inode);
        for (xattr, _) in self.table.scan(&start, &end, usize::MAX)? {
            self.table.delete(xattr);
        }
        let has_units = !record.inline || query::truncation(self.table, inode)?.is_some();
        if record.kind == FileKind::File && has_units {
            self.truncate_units(inode, Truncation { layout: record.layout, size: 0 })?;
        }
        self.table.delete(key::content(inode));
        self.table.delete(key::orphan(inode));
        self.table.delete(key::inode(inode));
        self.inodes[inode.view().index()] -= 1;
        Ok(())
    }

    pub(super) fn set_parent(&mut self, dir: InodeId, parent: InodeId) -> Result<()> {
        let Some(mut record) = query::inode(self.table, dir)? else { return Ok(()) };
        record.parent = parent;
        self.put_inode(dir, &record)
    }

    /// Updates the change time. Never fails because of the inode's state, as [`Self::drop_link`].
    pub(super) fn touch(&mut self, inode: InodeId, now: Timestamp) -> Result<()> {
        let Some(mut record) = query::inode(self.table, inode)? else { return Ok(()) };
        record.ctime = record.ctime.max(now);
        self.put_inode(inode, &record)
    }

    /// Fails with `EINVAL` if `dir` is `ancestor` or below it.
    pub(super) fn not_below(&self, mut dir: InodeId, ancestor: InodeId) -> Result<()> {
        for _ in 0..DIRECTORY_DEPTH_MAX {
            if dir == ancestor {
                return Err(Errno::EINVAL.into());
            }
            let parent = self.inode(dir)?.parent;
            if parent == dir {
                return Ok(());
            }
            dir = parent;
        }
        Err(Errno::ELOOP.into())
    }
}

/// Clears privileges when the owner changes, as Linux does: set-user-id, and set-group-id unless the file lacks group
/// execution (it then meant mandatory locking).
fn clear_privileges(record: &mut InodeRecord) {
    if record.kind == FileKind::Directory {
        return;
    }
    record.mode &= !S_ISUID;
    if record.mode & S_IXGRP != 0 {
        record.mode &= !S_ISGID;
    }
}

fn set_layout(record: &mut InodeRecord, layout: Layout) -> Result<()> {
    if record.kind != FileKind::Directory {
        return Err(Fault::new(
            Errno::ENOTDIR,
            "the layout of a file is fixed when it is created; set it on the directory and create the file again",
        ));
    }
    record.layout = layout;
    Ok(())
}
