//! The node-local view: a directory on the node's own disk with a capacity limit.
//!
//! Calls run on the calling thread, because the disk is local. The kernel serves node-local views in memory; this module does not.

mod space;
#[cfg(test)]
mod tests;

use crate::handles::Handles;
use crate::passthrough::{Identity, Owner, Passthrough, TreeView, Waiting, change_space, seek_of};
use crate::types::{
    FileNumber, Found, HandleNumber, Name, OpenMode, Opened, ReadBytes, ViewSpace, WriteAt, WriteBytes,
};
use crate::vfs::{Content, Inodes, KernelPages, Locking, Names, OpenFiles, Usage};
use parking_lot::Mutex;
use space::LocalSpace;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::admin::Space;
use tameike_core::wire::meta::{NewInode, RenameMode};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, FileKind, InodeId, Result};
use tameike_io::Runtime;
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs};

/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

#[derive(Clone)]
struct Handle {
    id: Identity,
    file: Arc<dyn SharedFile>,
    mode: OpenMode,
    /// Held while the content of the file changes; shared by all its handles.
    changing: Arc<Mutex<()>>,
}

/// The node-local view of one node.
pub struct LocalView {
    below: Passthrough,
    space: LocalSpace,
    handles: Handles<InodeId, Handle>,
}

impl LocalView {
    /// Creates the view of an empty tree with at most `capacity` bytes.
    pub fn new(runtime: Runtime, fs: Arc<dyn SharedFs>, capacity: u64) -> Self {
        Self {
            below: Passthrough::new(runtime, fs, Waiting::Here),
            space: LocalSpace::new(capacity),
            handles: Handles::default(),
        }
    }

    /// Space and inodes in use.
    pub fn usage(&self) -> Space {
        let (capacity, used, inodes) = (self.space.capacity(), self.space.used(), self.space.inodes());
        Space { capacity, used, dirty: 0, inodes }
    }

    fn add_handle(&self, id: Identity, file: Arc<dyn SharedFile>, mode: OpenMode) -> HandleNumber {
        self.handles.add(id.inode, |other: Option<&Handle>| {
            let changing = other.map(|other| other.changing.clone()).unwrap_or_default();
            Handle { id, file, mode, changing }
        })
    }

    fn handle(&self, number: HandleNumber) -> Result<Handle> {
        self.handles.get(number).ok_or_else(|| Errno::EBADF.into())
    }

    /// A handle of a file that is already open, for writing if `write`. The file may have lost its names or its read or write permission
    /// since.
    fn open_handle(&self, id: &Identity, write: bool) -> Option<Handle> {
        self.handles.find(id.inode, |open| open.id.is(id) && (open.mode.write || !write))
    }

    /// Changes a file's content, one change at a time, and accounts for the difference in space. `growth` computes, from the attributes
    /// before the change, the most space that it may need, and the input of `change`.
    fn change_content<T>(
        &self,
        open: &Handle,
        growth: impl FnOnce(&FileStat) -> Result<(u64, T)>,
        change: impl FnOnce(T) -> Result<()>,
    ) -> Result<()> {
        let _one = open.changing.lock();
        let before = open.file.stat()?;
        let (growth, with) = growth(&before)?;
        let _reserved = self.space.reserve(growth)?;
        let changed = change(with);
        let after = open.file.stat()?;
        self.space.changed(before.blocks * STAT_BLOCK, after.blocks * STAT_BLOCK);
        changed
    }

    fn write_whole(&self, handle: HandleNumber, at: WriteAt, data: &[u8]) -> Result<()> {
        let open = self.handle(handle)?;
        let growth = |before: &FileStat| {
            let offset = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::End => before.size,
            };
            let length = data.len() as u64;
            let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
            let held = before.blocks * STAT_BLOCK;
            // In a file with holes, any byte may need space; otherwise only those past its end.
            let is_sparse = held < before.size;
            let growth = if is_sparse { length } else { end.saturating_sub(held).min(length) };
            Ok((growth, offset))
        };
        self.change_content(&open, growth, |offset| open.file.write_at(data, offset))
    }

    fn truncate(&self, open: &Handle, size: u64) -> Result<()> {
        // Extending a file with a hole needs no space.
        self.change_content(open, |_| Ok((0, ())), |()| open.file.truncate(size))
    }

    fn opened(&self, id: Identity, file: Arc<dyn SharedFile>, mode: OpenMode) -> Result<Opened> {
        let handle = self.add_handle(id, file, mode);
        if mode.write && mode.truncate {
            let truncated = self.handle(handle).and_then(|open| self.truncate(&open, 0));
            truncated.inspect_err(|_| self.close(handle))?;
        }
        let keep_cache = !mode.beside_kernel && !self.below.tree.mark_pages(id.inode, false);
        Ok(Opened { handle, keep_cache, direct: false, has_setid: false })
    }

    /// Accounts for a removed name. The last one frees the space, unless the file is still open.
    fn lost_name(&self, stat: &FileStat) {
        let is_last = stat.nlink <= 1 || stat.kind == FileKind::Directory;
        if is_last && self.open_handle(&Identity::of(stat), false).is_none() {
            self.space.inode_gone(space_of(stat));
        }
    }

    /// Closes a handle. The last handle of a file without names frees its space.
    fn close(&self, handle: HandleNumber) {
        let Some((_, closed, true)) = self.handles.remove(handle) else { return };
        match closed.file.stat() {
            Ok(stat) if stat.nlink == 0 => self.space.inode_gone(space_of(&stat)),
            Ok(_) => {}
            Err(fault) => log::warn!("cannot account for the space of a closed file: {fault}"),
        }
    }

    async fn open_path(&self, path: Vec<u8>, mode: OpenMode) -> Result<Arc<dyn SharedFile>> {
        let access = if mode.write { Access::Write } else { Access::Read };
        self.below.run(move |fs| fs.open(&path, access)).await
    }
}

/// Space that the view counts for a file: that of its content.
fn space_of(stat: &FileStat) -> u64 {
    if stat.kind == FileKind::File { stat.blocks * STAT_BLOCK } else { 0 }
}

impl TreeView for LocalView {
    fn below(&self) -> &Passthrough {
        &self.below
    }
}

impl Names for LocalView {
    async fn lookup(&self, dir: FileNumber, name: &[u8]) -> Result<Found> {
        self.below.lookup(dir, name).await
    }

    async fn make(&self, dir: FileNumber, name: &[u8], new: NewInode) -> Result<Found> {
        let made = self.below.make(dir, name, new).await?;
        self.space.inode_made();
        Ok(made)
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
        self.below.rmdir(dir, name).await?;
        self.space.inode_gone(0);
        Ok(())
    }

    async fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let target = self.below.child(to.0, to.1)?;
        let source = self.below.child(from.0, from.1)?;
        let stats = self.below.run(move |fs| Ok((fs.stat(&target).ok(), fs.stat(&source)?)));
        let (target, source) = stats.await?;
        let replaced = target.filter(|target| target.inode != source.inode);
        self.below.rename(from, to, mode).await?;
        if let (RenameMode::Replace, Some(stat)) = (mode, replaced) {
            self.lost_name(&stat);
        }
        Ok(())
    }
}

impl Inodes for LocalView {
    async fn lookup_again(&self, file: FileNumber) -> Result<Found> {
        self.below.lookup_again(file, self.getattr(file)).await
    }

    fn forget(&self, file: FileNumber, count: u64) {
        self.below.tree.forget(file, count);
    }

    async fn getattr(&self, file: FileNumber) -> Result<Attr> {
        let stat = match self.below.stat(file).await {
            Err(fault) => self.open_handle(&self.below.identity(file), false).ok_or(fault)?.file.stat(),
            stat => stat,
        };
        Ok(stat?.attr())
    }

    async fn setattr(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        if let Some(size) = change.size {
            match self.open_handle(&self.below.identity(file), true) {
                Some(open) => self.truncate(&open, size)?,
                None => {
                    let mode = OpenMode { write: true, ..OpenMode::default() };
                    let opened = self.open(file, mode).await?;
                    let truncated = self.handle(opened.handle).and_then(|open| self.truncate(&open, size));
                    self.close(opened.handle);
                    truncated?;
                }
            }
        }
        let rest = AttrChange { size: None, ..change };
        if rest != AttrChange::default() {
            match self.below.change(file, rest.clone()).await {
                Err(fault) if fault.errno == Errno::ESTALE => {
                    self.open_handle(&self.below.identity(file), false).ok_or(fault)?.file.change(&rest)?;
                }
                other => other?,
            }
        }
        self.getattr(file).await
    }

    async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        self.below.readlink(file).await
    }
}

impl OpenFiles for LocalView {
    async fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Found, Opened)> {
        let path = self.below.child(dir, name)?;
        let (at, owner) = (path.clone(), Owner::of(&new));
        let created = self.below.run(move |fs| owner.create(fs, &at, new.mode)).await;
        let (file, is_new) = match created {
            Err(fault) if fault.errno == Errno::EEXIST && !exclusive => {
                (self.open_path(path, mode).await?, false)
            }
            created => (created.inspect(|_| self.space.inode_made())?, true),
        };
        let stat = file.stat()?;
        let opened = self.opened(Identity::of(&stat), file.clone(), mode)?;
        let stat = file.stat().inspect_err(|_| self.close(opened.handle))?;
        let found = match is_new {
            true => self.below.made(dir, name, &stat),
            false => self.below.found(dir, name, &stat),
        };
        Ok((found, opened))
    }

    async fn open(&self, file: FileNumber, mode: OpenMode) -> Result<Opened> {
        let open = match self.below.path(file) {
            Ok(path) => self.open_path(path, mode).await?,
            // The file has lost its names, but is still open.
            Err(stale) => self.open_handle(&self.below.identity(file), mode.write).ok_or(stale)?.file,
        };
        if !self.below.is(file, &open.stat()?) {
            // Another file has just taken the name: the caller repeats the lookup.
            return Err(Errno::ESTALE.into());
        }
        self.opened(self.below.identity(file), open, mode)
    }

    async fn flush(&self, handle: HandleNumber) -> Result<()> {
        self.handle(handle).map(drop)
    }

    async fn fsync(&self, handle: HandleNumber) -> Result<()> {
        self.handle(handle)?.file.sync()
    }

    async fn size(&self, handle: HandleNumber) -> Result<u64> {
        Ok(self.handle(handle)?.file.stat()?.size)
    }

    async fn release(&self, handle: HandleNumber) {
        self.close(handle);
    }
}

impl Content for LocalView {
    async fn read(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<ReadBytes> {
        let mut bytes = vec![0; length as usize];
        let count = self.handle(handle)?.file.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok(ReadBytes::Memory(bytes))
    }

    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize> {
        self.write_whole(handle, at, &data.held(0))?;
        Ok(data.size())
    }

    async fn write(&self, handle: HandleNumber, at: WriteAt, data: &[u8]) -> Result<()> {
        self.write_whole(handle, at, data)
    }

    async fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        let open = self.handle(handle)?;
        // Whole blocks, and the file system's metadata for them.
        let wanted = (bytes.end - bytes.start).saturating_add(2 * BLOCK_SIZE as u64);
        let growth = if change == SpaceChange::Punch { 0 } else { wanted };
        self.change_content(&open, |_| Ok((growth, ())), |()| change_space(&*open.file, change, bytes, grows))
    }

    async fn seek(&self, handle: HandleNumber, sought: Sought, offset: u64) -> Result<u64> {
        self.handle(handle)?.file.seek(seek_of(sought), offset)
    }
}

impl Locking for LocalView {}

impl KernelPages for LocalView {
    fn mark_pages_stale(&self, handle: HandleNumber) {
        let _ = self.handles.file(handle).map(|inode| self.below.tree.mark_pages(inode, true));
    }

    fn keeps_pages(&self, handle: HandleNumber) -> bool {
        self.handles.file(handle).is_some_and(|inode| !self.below.tree.has_stale_pages(inode))
    }
}

impl Usage for LocalView {
    async fn space(&self) -> Result<ViewSpace> {
        let below = self.below.space().await?;
        let free = self.space.capacity().saturating_sub(self.space.used()).min(below.free);
        let by_space = free / BLOCK_SIZE as u64;
        // A file system without an inode limit reports zero.
        let is_limited = below.inodes + below.inodes_free > 0;
        let inodes_free = if is_limited { by_space.min(below.inodes_free) } else { by_space };
        Ok(ViewSpace { capacity: self.space.capacity(), free, inodes: self.space.inodes(), inodes_free })
    }
}
