//! The node-local view: a directory of the node's own disk, with a limit on what lies in it (BB-1, BB-6).
//!
//! Calls run on the thread that asks: the disk is this node's own. Where the kernel and privileges allow,
//! reading and writing can pass by the agent altogether; that is the door's business.

use crate::passthrough::{Owner, Passthrough, Waiting, number, xattr_mode};
use crate::vfs::{Entries, FileNumber, Found, HandleNumber, OpenMode, Opened, ReadBytes, Vfs, ViewSpace};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::{Attr, Errno, FileKind, Result};
use tameike_io::Runtime;
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs};

/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

#[derive(Clone)]
struct Handle {
    number: FileNumber,
    file: Arc<dyn SharedFile>,
    mode: OpenMode,
}

/// The node-local view of one node.
pub struct LocalView {
    below: Passthrough,
    capacity: u64,
    used: AtomicU64,
    handles: Mutex<BTreeMap<HandleNumber, Handle>>,
    next_handle: AtomicU64,
    /// Held while space is taken, so that two writers do not take the same.
    growing: Mutex<()>,
}

impl LocalView {
    /// The view of an empty tree, for at most `capacity` bytes.
    pub fn new(runtime: Runtime, fs: Arc<dyn SharedFs>, capacity: u64) -> Self {
        Self {
            below: Passthrough::new(runtime, fs, Waiting::Here),
            capacity,
            used: AtomicU64::new(0),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            growing: Mutex::new(()),
        }
    }

    /// The limit, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn add_handle(&self, number: FileNumber, file: Arc<dyn SharedFile>, mode: OpenMode) -> Opened {
        let handle = HandleNumber(self.next_handle.fetch_add(1, Ordering::Relaxed));
        self.handles.lock().insert(handle, Handle { number, file, mode });
        Opened { handle, keep_cache: true, direct: false }
    }

    fn handle(&self, number: HandleNumber) -> Result<Handle> {
        self.handles.lock().get(&number).cloned().ok_or_else(|| Errno::EBADF.into())
    }

    /// Runs a change of a file's content that brings `written` bytes up to `end`, and counts the space it took
    /// or gave back.
    fn change_size(
        &self,
        file: &dyn SharedFile,
        end: u64,
        written: u64,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _one = self.growing.lock();
        let before = file.stat()?;
        let held = before.blocks * STAT_BLOCK;
        // Where a file has holes, any byte may need space; elsewhere only those behind its end.
        let is_sparse = held < before.size;
        let growth = if is_sparse { written } else { end.saturating_sub(held).min(written) };
        if growth > 0 && self.used() + growth > self.capacity {
            return Err(Errno::ENOSPC.into());
        }
        let changed = change();
        let after = file.stat()?;
        self.account(before.blocks, after.blocks);
        changed
    }

    fn account(&self, before: u64, after: u64) {
        if after >= before {
            self.used.fetch_add((after - before) * STAT_BLOCK, Ordering::Relaxed);
        } else {
            let less = (before - after) * STAT_BLOCK;
            let lessen = |used: u64| Some(used.saturating_sub(less));
            let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lessen);
        }
    }

    /// A file has lost a name; the last one gives its space back, unless the file is still open.
    fn lost_name(&self, stat: &FileStat) {
        let is_last = stat.nlink <= 1 && stat.kind == FileKind::File;
        if is_last && self.open_file(number(stat.inode_id()), false).is_none() {
            self.account(stat.blocks, 0);
        }
    }

    /// Ends a handle; the last one of a file that has lost its names gives its space back.
    fn close(&self, handle: HandleNumber) {
        let closed = self.handles.lock().remove(&handle);
        let Some(closed) = closed.filter(|closed| self.open_file(closed.number, false).is_none()) else {
            return;
        };
        match closed.file.stat() {
            Ok(stat) if stat.nlink == 0 => self.account(stat.blocks, 0),
            Ok(_) => {}
            Err(fault) => log::warn!("space of a closed file: {fault}"),
        }
    }

    async fn cut(&self, file: &dyn SharedFile, size: u64) -> Result<()> {
        // Growing by a hole takes no space.
        self.change_size(file, 0, 0, || file.truncate(size))
    }

    fn write_whole(&self, handle: HandleNumber, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.handle(handle)?;
        let file = &*handle.file;
        let offset = if handle.mode.append { file.stat()?.size } else { offset };
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        self.change_size(file, end, data.len() as u64, || file.write_at(data, offset))
    }

    async fn open_path(&self, path: Vec<u8>, mode: OpenMode) -> Result<Arc<dyn SharedFile>> {
        let access = if mode.write { Access::Write } else { Access::Read };
        let file = self.below.run(move |fs| fs.open(&path, access)).await?;
        if mode.write && mode.truncate {
            self.cut(&*file, 0).await?;
        }
        Ok(file)
    }
}

impl Vfs for LocalView {
    async fn lookup(&self, dir: FileNumber, name: &[u8]) -> Result<Found> {
        self.below.lookup(dir, name).await
    }

    fn forget(&self, file: FileNumber, count: u64) {
        self.below.forget(file, count);
    }

    async fn getattr(&self, file: FileNumber) -> Result<Attr> {
        match self.below.stat(file).await {
            Ok(stat) => Ok(stat.attr()),
            Err(fault) => self.open_file(file, false).ok_or(fault)?.stat().map(|stat| stat.attr()),
        }
    }

    async fn setattr(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        if let Some(size) = change.size {
            let open = match self.open_file(file, true) {
                Some(open) => open,
                None => {
                    let path = self.below.path(file)?;
                    self.below.run(move |fs| fs.open(&path, Access::Write)).await?
                }
            };
            self.cut(&*open, size).await?;
        }
        let rest = AttrChange { size: None, ..change };
        if rest != AttrChange::default() {
            match self.below.change(file, rest.clone()).await {
                Err(fault) if fault.errno == Errno::ESTALE => {
                    self.open_file(file, false).ok_or(fault)?.change(&rest)?;
                }
                other => other?,
            }
        }
        self.getattr(file).await
    }

    async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        self.below.readlink(file).await
    }

    async fn make(&self, dir: FileNumber, name: &[u8], new: NewInode) -> Result<Found> {
        self.below.make(dir, name, new).await
    }

    async fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Found, Opened)> {
        let path = self.below.child(dir, name)?;
        let created = {
            let path = path.clone();
            let owner = Owner::of(&new);
            self.below.run(move |fs| owner.create(fs, &path, new.mode)).await
        };
        let file = match created {
            Err(fault) if fault.errno == Errno::EEXIST && !exclusive => self.open_path(path, mode).await?,
            created => created?,
        };
        let found = self.below.found(dir, name, &file.stat()?);
        let opened = self.add_handle(found.file, file, mode);
        Ok((found, opened))
    }

    async fn link(&self, file: FileNumber, dir: FileNumber, name: &[u8]) -> Result<Found> {
        self.below.link(file, dir, name).await
    }

    async fn unlink(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        let (stat, _) = self.below.unlink(dir, name).await?;
        self.lost_name(&stat);
        Ok(())
    }

    async fn rmdir(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        self.below.rmdir(dir, name).await
    }

    async fn rename(
        &self,
        from: (FileNumber, &[u8]),
        to: (FileNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let target = self.below.child(to.0, to.1)?;
        let source = self.below.child(from.0, from.1)?;
        let replaced = self
            .below
            .run(move |fs| Ok((fs.stat(&target).ok(), fs.stat(&source)?)))
            .await
            .map(|(target, source)| target.filter(|target| target.inode != source.inode))?;
        self.below.rename(from, to, mode).await?;
        if let (RenameMode::Replace, Some(stat)) = (mode, replaced) {
            self.lost_name(&stat);
        }
        Ok(())
    }

    async fn open(&self, file: FileNumber, mode: OpenMode) -> Result<Opened> {
        let open = match self.below.path(file) {
            Ok(path) => self.open_path(path, mode).await?,
            // It has lost its names, but is still open.
            Err(stale) => self.open_file(file, mode.write).ok_or(stale)?,
        };
        Ok(self.add_handle(file, open, mode))
    }

    async fn read(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<ReadBytes> {
        let mut bytes = vec![0; length as usize];
        let count = self.handle(handle)?.file.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok(ReadBytes::Memory(bytes))
    }

    fn write_now(&self, handle: HandleNumber, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_whole(handle, offset, data)?;
        Ok(data.len())
    }

    async fn write(&self, handle: HandleNumber, offset: u64, data: &[u8]) -> Result<()> {
        self.write_whole(handle, offset, data)
    }

    async fn flush(&self, handle: HandleNumber) -> Result<()> {
        self.handle(handle).map(drop)
    }

    async fn fsync(&self, handle: HandleNumber) -> Result<()> {
        self.handle(handle)?.file.sync()
    }

    async fn release(&self, handle: HandleNumber) {
        self.close(handle);
    }

    async fn open_dir(&self, dir: FileNumber) -> Result<HandleNumber> {
        self.below.open_dir(dir).await
    }

    async fn readdir(&self, dir: HandleNumber, after: u64) -> Result<Entries> {
        self.below.readdir(dir, after).await
    }

    fn release_dir(&self, dir: HandleNumber) {
        self.below.release_dir(dir);
    }

    async fn fsync_dir(&self, dir: FileNumber) -> Result<()> {
        self.below.sync_dir(dir).await
    }

    async fn space(&self) -> Result<ViewSpace> {
        let below = self.below.space().await?;
        let free = self.capacity.saturating_sub(self.used()).min(below.free);
        Ok(ViewSpace { capacity: self.capacity, free, inodes: below.inodes })
    }

    async fn get_xattr(&self, file: FileNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.below.get_xattr(file, name).await
    }

    async fn list_xattr(&self, file: FileNumber) -> Result<Vec<Vec<u8>>> {
        self.below.list_xattr(file).await
    }

    async fn set_xattr(
        &self,
        file: FileNumber,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        self.below.set_xattr(file, name, value, xattr_mode(create, replace)).await
    }

    async fn remove_xattr(&self, file: FileNumber, name: &[u8]) -> Result<()> {
        self.below.remove_xattr(file, name).await
    }
}

impl LocalView {
    /// A file that is open, for writing if `write`: it may have lost its names, or the right to be opened.
    fn open_file(&self, file: FileNumber, write: bool) -> Option<Arc<dyn SharedFile>> {
        let handles = self.handles.lock();
        let mut fitting = handles.values().filter(|open| open.number == file && (open.mode.write || !write));
        fitting.next().map(|open| open.file.clone())
    }
}
