//! A shared file system that fails on purpose.

use super::late::Mount;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Fault, InodeId, Result};
use tameike_io::shared::{
    Access, Allocate, FileStat, OpenFileCache, Pin, Seek, SharedDir, SharedFile, SharedFs, Special,
    TreeSpace, XattrMode,
};

/// Which call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// None.
    Good,
    /// Only the one after so many others.
    Once(u64, Errno),
    /// That one and all after it that change something.
    From(u64, Errno),
    /// Only the next fsync of a file.
    Fsync(Errno),
    /// Only the next write to this offset of a file.
    Write(u64, Errno),
}

pub(super) struct Control {
    plan: Mutex<Plan>,
    failed: Mutex<u64>,
    reads: Mutex<u64>,
    opens: Mutex<u64>,
    /// Files of which an fsync has failed. As with ext4, what is written to one of them after that stays in memory
    /// for good, and fsync says that it is safe, until the file's pages are dropped.
    spoilt: Mutex<BTreeSet<InodeId>>,
    /// How many fsyncs of a file have failed: each descriptor that was open then is told once.
    errors: Mutex<BTreeMap<InodeId, u64>>,
    /// Whether the last change of attributes shows the time of the last change of content.
    joined_times: AtomicBool,
    /// Whether who has written to a file ends it by the same open.
    writers_end: AtomicBool,
    syncs: Mutex<u64>,
}

impl Control {
    /// From now on who has written to a file may give it its size and time by the same open.
    pub(super) fn let_writers_end(&self) {
        self.writers_end.store(true, Ordering::Relaxed);
    }

    /// Fsyncs of files so far.
    pub(super) fn syncs(&self) -> u64 {
        *self.syncs.lock()
    }

    /// From now on both times of last change are that of the content.
    pub(super) fn join_times(&self) {
        self.joined_times.store(true, Ordering::Relaxed);
    }

    fn seen(&self, stat: FileStat) -> FileStat {
        match self.joined_times.load(Ordering::Relaxed) {
            true => FileStat { ctime: stat.mtime, ..stat },
            false => stat,
        }
    }

    pub(super) fn set(&self, plan: Plan) {
        *self.plan.lock() = plan;
        *self.failed.lock() = 0;
    }

    /// Calls that failed since the plan was set.
    pub(super) fn failed(&self) -> u64 {
        *self.failed.lock()
    }

    /// Reads of file content so far.
    pub(super) fn reads(&self) -> u64 {
        *self.reads.lock()
    }

    /// Opens of files for reading so far.
    pub(super) fn opens(&self) -> u64 {
        *self.opens.lock()
    }

    fn errors(&self, inode: InodeId) -> u64 {
        self.errors.lock().get(&inode).copied().unwrap_or_default()
    }

    fn call(&self, changes: bool) -> Result<()> {
        let mut plan = self.plan.lock();
        let errno = match &mut *plan {
            Plan::Good | Plan::Fsync(_) | Plan::Write(..) => return Ok(()),
            Plan::Once(0, errno) => {
                let errno = *errno;
                *plan = Plan::Good;
                errno
            }
            Plan::From(0, errno) if changes => *errno,
            Plan::From(0, _) => return Ok(()),
            Plan::Once(left, _) | Plan::From(left, _) => {
                *left -= 1;
                return Ok(());
            }
        };
        *self.failed.lock() += 1;
        Err(Fault::new(errno, "failed on purpose"))
    }

    fn fsync(&self) -> Result<()> {
        *self.syncs.lock() += 1;
        let plan = *self.plan.lock();
        if let Plan::Fsync(errno) = plan {
            *self.plan.lock() = Plan::Once(0, errno);
        }
        self.call(true)
    }

    fn write(&self, offset: u64) -> Result<()> {
        let plan = *self.plan.lock();
        if let Plan::Write(place, errno) = plan
            && place == offset
        {
            *self.plan.lock() = Plan::Once(0, errno);
        }
        self.call(true)
    }
}

/// The wrapper.
pub(super) struct FaultyFs {
    pub(super) inner: Arc<dyn SharedFs>,
    pub(super) control: Arc<Control>,
    mount: Option<Arc<Mount>>,
}

impl FaultyFs {
    pub(super) fn new(inner: Arc<dyn SharedFs>) -> Self {
        let control = Control {
            plan: Mutex::new(Plan::Good),
            failed: Mutex::new(0),
            reads: Mutex::new(0),
            opens: Mutex::new(0),
            spoilt: Mutex::default(),
            errors: Mutex::default(),
            joined_times: AtomicBool::default(),
            writers_end: AtomicBool::default(),
            syncs: Mutex::default(),
        };
        Self { inner, control: Arc::new(control), mount: None }
    }

    /// The same on another machine, of which this is the mount.
    pub(super) fn mounted(&self, mount: Arc<Mount>) -> Self {
        Self { inner: self.inner.clone(), control: self.control.clone(), mount: Some(mount) }
    }

    fn wrap(&self, file: Arc<dyn SharedFile>) -> Result<Arc<dyn SharedFile>> {
        let inode = file.stat()?.inode_id();
        let (control, told) = (self.control.clone(), Mutex::new(self.control.errors(inode)));
        let (unsynced, mount) = (Mutex::default(), self.mount.clone());
        let written = AtomicBool::new(false);
        Ok(Arc::new(FaultyFile { inner: file, inode, unsynced, told, written, control, mount }))
    }

    fn seen(&self, stat: FileStat) -> FileStat {
        let stat = self.control.seen(stat);
        self.mount.as_ref().map_or(stat.clone(), |mount| mount.seen(stat))
    }

    fn changed(&self, path: &[u8], change: &AttrChange) {
        if let (Some(mount), Ok(stat)) = (&self.mount, self.inner.stat(path)) {
            mount.changed(stat.inode_id(), change);
        }
    }
}

struct FaultyFile {
    inner: Arc<dyn SharedFile>,
    inode: InodeId,
    /// What was there before each write since the last fsync: a failing one takes them back.
    unsynced: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Errors of the file that this descriptor has been told, or that were before it.
    told: Mutex<u64>,
    /// Whether it was written to through this descriptor.
    written: AtomicBool,
    control: Arc<Control>,
    mount: Option<Arc<Mount>>,
}

impl FaultyFile {
    fn wrote(&self, end: u64) {
        self.written.store(true, Ordering::Relaxed);
        self.mount.iter().for_each(|mount| mount.wrote(self.inode, end));
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        if *self.written.get_mut() {
            self.mount.iter().for_each(|mount| mount.closed(self.inode));
        }
    }
}

impl SharedFile for FaultyFile {
    fn stat(&self) -> Result<FileStat> {
        self.control.call(false)?;
        let stat = self.control.seen(self.inner.stat()?);
        Ok(self.mount.as_ref().map_or(stat.clone(), |mount| mount.seen(stat)))
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.control.call(false)?;
        *self.control.reads.lock() += 1;
        let end = self.mount.as_ref().and_then(|mount| mount.end(self.inode));
        let rest = end.map(|end| end.saturating_sub(offset) as usize);
        let seen = rest.map_or(buffer.len(), |rest| rest.min(buffer.len()));
        self.inner.read_at(&mut buffer[..seen], offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.control.spoilt.lock().contains(&self.inode) {
            return self.control.call(true);
        }
        let mut before = vec![0; bytes.len()];
        self.inner.read_at(&mut before, offset)?;
        self.unsynced.lock().push((offset, before));
        if let Err(fault) = self.control.write(offset) {
            // As a full disk does: a part is written.
            let _ = self.inner.write_at(&bytes[..bytes.len() / 2], offset);
            return Err(fault);
        }
        self.wrote(offset + bytes.len() as u64);
        self.inner.write_at(bytes, offset)
    }
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.append(bytes)?;
        self.wrote(self.inner.stat()?.size);
        Ok(())
    }
    fn truncate(&self, size: u64) -> Result<()> {
        self.control.call(true)?;
        self.wrote(0);
        self.mount.iter().for_each(|mount| mount.was_cut(self.inode));
        self.inner.truncate(size)
    }
    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        self.control.call(true)?;
        self.wrote(0);
        self.inner.allocate(how, offset, length)
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.control.call(false)?;
        self.inner.seek(what, offset)
    }
    fn sync(&self) -> Result<()> {
        let told = std::mem::replace(&mut *self.told.lock(), self.control.errors(self.inode));
        if told < self.control.errors(self.inode) {
            return Err(Fault::new(Errno::EIO, "failed for another descriptor"));
        }
        if let Err(fault) = self.control.fsync() {
            self.control.spoilt.lock().insert(self.inode);
            *self.control.errors.lock().entry(self.inode).or_default() += 1;
            *self.told.lock() += 1;
            for (offset, before) in self.unsynced.lock().drain(..).rev() {
                self.inner.write_at(&before, offset)?;
            }
            return Err(fault);
        }
        self.unsynced.lock().clear();
        self.inner.sync()
    }
    fn revalidate(&self) -> Result<()> {
        self.control.call(false)?;
        self.mount.iter().for_each(|mount| mount.revalidate(self.inode));
        Ok(())
    }
    fn forget_pages(&self) -> Result<()> {
        self.control.call(false)?;
        self.control.spoilt.lock().remove(&self.inode);
        self.inner.forget_pages()
    }
    fn change(&self, change: &AttrChange) -> Result<()> {
        self.control.call(true)?;
        self.mount.iter().for_each(|mount| mount.changed(self.inode, change));
        self.inner.change(change)
    }
    fn writer_sets_times(&self) -> bool {
        self.control.writers_end.load(Ordering::Relaxed)
    }
}

impl SharedFs for FaultyFs {
    fn kept(&self) -> Option<&OpenFileCache> {
        self.inner.kept()
    }
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        self.control.call(false)?;
        self.inner.stat(path).map(|stat| self.seen(stat))
    }
    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        self.control.call(false)?;
        self.inner.pin(path)
    }
    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        self.control.call(false)?;
        self.inner.open_dir(path)
    }
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.control.call(false)?;
        self.inner.read_link(path)
    }
    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        self.control.call(access == Access::Write)?;
        *self.control.opens.lock() += u64::from(access == Access::Read);
        self.inner.open(path, access).and_then(|file| self.wrap(file))
    }
    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        self.control.call(true)?;
        self.inner.create(path, mode).and_then(|file| self.wrap(file))
    }
    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        self.control.call(true)?;
        self.inner.make(path, special)
    }
    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.unlink(path)
    }
    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.rmdir(path)
    }
    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        self.control.call(true)?;
        self.changed(from, &AttrChange::default());
        self.inner.rename(from, to, mode)
    }
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.link(from, to)
    }
    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        self.control.call(true)?;
        self.changed(path, change);
        self.inner.change(path, change)
    }
    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.control.call(false)?;
        self.inner.xattr(path, name)
    }
    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.control.call(false)?;
        self.inner.xattrs(path)
    }
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.control.call(true)?;
        self.inner.set_xattr(path, name, value, mode)
    }
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.remove_xattr(path, name)
    }
    fn space(&self) -> Result<TreeSpace> {
        self.control.call(false)?;
        self.inner.space()
    }
    fn sync_dir(&self, path: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.sync_dir(path)
    }
}
