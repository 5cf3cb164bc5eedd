//! Inodes and names of the simulated shared file system, without faults.

use super::content::Content;
use std::collections::BTreeMap;
use std::ops::Range;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind, NodeId, Result, Timestamp};
use tameike_io::shared::{FileStat, XattrMode};

pub(super) const ROOT: u64 = 2;
/// The first inode number for a new file.
const FIRST: u64 = 11;

/// A write that no fsync covers.
pub(super) struct UnsyncedWrite {
    pub node: NodeId,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

impl UnsyncedWrite {
    /// The part of its bytes that the file has in a range.
    pub fn part_in(&mut self, range: Range<u64>) -> &mut [u8] {
        let end = self.offset + self.bytes.len() as u64;
        let start = range.start.clamp(self.offset, end);
        let stop = range.end.clamp(start, end);
        &mut self.bytes[(start - self.offset) as usize..(stop - self.offset) as usize]
    }
}

pub(super) struct Inode {
    /// Creation order: distinguishes inodes with the same number.
    pub generation: u64,
    pub kind: FileKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub content: Content,
    /// The durable content.
    pub durable: Content,
    pub unsynced_writes: Vec<UnsyncedWrite>,
    /// An fsync failed: until its pages are dropped, no write becomes durable.
    pub sync_failed: bool,
    /// Failed fsyncs; each descriptor that was open reports them once.
    pub errors: u64,
    pub children: BTreeMap<Vec<u8>, u64>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Descriptors and pins.
    pub holds: u32,
}

impl Inode {
    /// Reads the durable content, and applies the unsynced writes. The file system's journal keeps the size.
    pub fn reload(&mut self) {
        let size = self.content.size;
        self.content = self.durable.clone();
        for write in &self.unsynced_writes {
            self.content.write(&write.bytes, write.offset);
        }
        self.content.size = self.content.size.max(size);
    }

    /// Makes the unsynced writes of a node durable. All nodes see one content: if another node syncs an earlier write later, that does not
    /// restore what these have replaced.
    pub fn sync_writes_of(&mut self, node: NodeId) {
        let mut others = Vec::<UnsyncedWrite>::new();
        for write in std::mem::take(&mut self.unsynced_writes) {
            if write.node != node {
                others.push(write);
                continue;
            }
            let end = write.offset + write.bytes.len() as u64;
            for earlier in &mut others {
                let from = earlier.offset.max(write.offset) - write.offset;
                let part = earlier.part_in(write.offset..end);
                let (from, length) = (from.min(end - write.offset) as usize, part.len());
                part.copy_from_slice(&write.bytes[from..][..length]);
            }
            self.durable.write(&write.bytes, write.offset);
        }
        self.unsynced_writes = others;
        self.durable.size = self.durable.size.max(self.content.size);
    }
}

/// The state of the file system.
pub(super) struct State {
    pub inodes: BTreeMap<u64, Inode>,
    pub generations: u64,
    pub now: Timestamp,
    /// Numbers below are retired; numbers from `unused` on were never allocated.
    first: u64,
    unused: u64,
}

impl State {
    pub fn new(now: Timestamp) -> Self {
        let mut state = Self { inodes: BTreeMap::new(), generations: 0, now, first: FIRST, unused: FIRST };
        let root = state.blank(FileKind::Directory, 0o755);
        state.inodes.insert(ROOT, root);
        state
    }

    fn blank(&mut self, kind: FileKind, mode: u16) -> Inode {
        self.generations += 1;
        Inode {
            generation: self.generations,
            kind,
            mode,
            uid: super::OWNER,
            gid: super::OWNER,
            rdev: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            content: Content::default(),
            durable: Content::default(),
            unsynced_writes: Vec::new(),
            sync_failed: false,
            errors: 0,
            children: BTreeMap::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            holds: 0,
        }
    }

    pub fn inode(&self, number: u64) -> Result<&Inode> {
        self.inodes.get(&number).ok_or_else(|| Errno::ESTALE.into())
    }

    pub fn inode_mut(&mut self, number: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| Errno::ESTALE.into())
    }

    /// Looks up a path, without following symbolic links.
    pub fn find(&self, path: &[u8]) -> Result<u64> {
        let mut at = ROOT;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let dir = self.inode(at)?;
            match dir.kind {
                FileKind::Directory => at = *dir.children.get(name).ok_or(Errno::ENOENT)?,
                FileKind::Symlink => return Err(Errno::ELOOP.into()),
                _ => return Err(Errno::ENOTDIR.into()),
            }
        }
        Ok(at)
    }

    /// Looks up the directory of a path, and returns it with the last name.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(u64, &'a [u8])> {
        let (dir, name) = tameike_io::shared::split(path).ok_or(Errno::EBUSY)?;
        let dir = self.find(dir)?;
        match self.inode(dir)?.kind {
            FileKind::Directory => Ok((dir, name)),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    pub fn stat(&self, number: u64) -> Result<FileStat> {
        let inode = self.inode(number)?;
        Ok(FileStat {
            device: 0,
            inode: number,
            handle_hash: inode.generation,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: match inode.kind {
                FileKind::Symlink => inode.target.len() as u64,
                _ => inode.content.size,
            },
            blocks: inode.content.blocks(),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
        })
    }

    fn touch_dir(&mut self, dir: u64) {
        let now = self.now;
        if let Some(dir) = self.inodes.get_mut(&dir) {
            (dir.mtime, dir.ctime) = (now, now);
        }
    }

    pub fn make(&mut self, path: &[u8], kind: FileKind, mode: u16) -> Result<u64> {
        let (dir, name) = self.parent(path)?;
        if self.inode(dir)?.children.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        // Inode numbers are reused as early as possible, as in ext4.
        let number = (self.first..).find(|number| !self.inodes.contains_key(number)).ok_or(Errno::ENOSPC)?;
        self.unused = self.unused.max(number + 1);
        let inode = self.blank(kind, mode);
        self.inodes.insert(number, inode);
        let dir_inode = self.inode_mut(dir)?;
        dir_inode.children.insert(name.to_vec(), number);
        dir_inode.nlink += u32::from(kind == FileKind::Directory);
        self.touch_dir(dir);
        Ok(number)
    }

    /// Stops the reuse of all inode numbers allocated so far.
    pub fn retire_numbers(&mut self) {
        self.first = self.unused;
    }

    fn unname(&mut self, number: u64) {
        let now = self.now;
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.nlink = if inode.kind == FileKind::Directory { 0 } else { inode.nlink - 1 };
            inode.ctime = now;
        }
        self.sweep(number);
    }

    /// Frees an inode without names, descriptors and pins.
    pub fn sweep(&mut self, number: u64) {
        if self.inodes.get(&number).is_some_and(|inode| inode.nlink == 0 && inode.holds == 0) {
            self.inodes.remove(&number);
        }
    }

    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let number = self.find(path)?;
        if self.inode(number)?.kind == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        self.inode_mut(dir)?.children.remove(name);
        self.touch_dir(dir);
        self.unname(number);
        Ok(())
    }

    pub fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let number = self.find(path)?;
        let inode = self.inode(number)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if !inode.children.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let above = self.inode_mut(dir)?;
        above.children.remove(name);
        above.nlink -= 1;
        self.touch_dir(dir);
        self.unname(number);
        Ok(())
    }

    pub fn link(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let number = self.find(from)?;
        let (dir, name) = self.parent(to)?;
        if self.inode(dir)?.children.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        let now = self.now;
        let inode = self.inode_mut(number)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        inode.nlink += 1;
        inode.ctime = now;
        self.inode_mut(dir)?.children.insert(name.to_vec(), number);
        self.touch_dir(dir);
        Ok(())
    }

    pub fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let ((old_dir, old_name), (new_dir, new_name)) = (self.parent(from)?, self.parent(to)?);
        let moved = self.find(from)?;
        let replaced = self.inode(new_dir)?.children.get(new_name).copied();
        if to.starts_with(&[from, b"/"].concat())
            || (mode == RenameMode::Exchange && from.starts_with(&[to, b"/"].concat()))
        {
            return Err(Errno::EINVAL.into());
        }
        let is_dir = |state: &Self, number| {
            Ok::<_, tameike_core::Fault>(state.inode(number)?.kind == FileKind::Directory)
        };
        let moved_dir = is_dir(self, moved)?;
        match (mode, replaced) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (RenameMode::Replace, Some(replaced)) if replaced == moved => return Ok(()),
            (RenameMode::Replace, Some(replaced)) => match (moved_dir, is_dir(self, replaced)?) {
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, true) if !self.inode(replaced)?.children.is_empty() => {
                    return Err(Errno::ENOTEMPTY.into());
                }
                _ => {}
            },
            _ => {}
        }
        let now = self.now;
        self.inode_mut(old_dir)?.children.remove(old_name);
        self.inode_mut(new_dir)?.children.insert(new_name.to_vec(), moved);
        self.inode_mut(moved)?.ctime = now;
        let mut replaced_dir = false;
        if let Some(replaced) = replaced {
            replaced_dir = is_dir(self, replaced)?;
            if mode == RenameMode::Exchange {
                self.inode_mut(old_dir)?.children.insert(old_name.to_vec(), replaced);
                self.inode_mut(replaced)?.ctime = now;
            } else {
                self.unname(replaced);
            }
        }
        let exchange = mode == RenameMode::Exchange;
        let step = |old: &mut u32, come: bool, go: bool| *old = *old + u32::from(come) - u32::from(go);
        step(&mut self.inode_mut(old_dir)?.nlink, exchange && replaced_dir, moved_dir);
        step(&mut self.inode_mut(new_dir)?.nlink, moved_dir, replaced_dir);
        self.touch_dir(old_dir);
        self.touch_dir(new_dir);
        Ok(())
    }

    pub fn change(&mut self, number: u64, change: &AttrChange) -> Result<()> {
        if change.size.is_some() || change.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let now = self.now;
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let inode = self.inode_mut(number)?;
        inode.mode = change.mode.unwrap_or(inode.mode);
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.atime = change.atime.map_or(inode.atime, time);
        inode.mtime = change.mtime.map_or(inode.mtime, time);
        inode.ctime = now;
        Ok(())
    }

    pub fn set_xattr(&mut self, number: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let now = self.now;
        let inode = self.inode_mut(number)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST.into()),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.ctime = now;
        Ok(())
    }

    /// Drops the unsynced writes of a node, except those that `survives` selects.
    pub fn lose_power(&mut self, node: NodeId, mut survives: impl FnMut() -> bool) {
        for inode in self.inodes.values_mut() {
            if !inode.unsynced_writes.iter().any(|write| write.node == node) {
                continue;
            }
            inode.unsynced_writes.retain(|write| write.node != node || survives());
            inode.reload();
        }
    }
}
