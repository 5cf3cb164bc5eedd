//! A shared file system with fault injection.

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

/// Calls to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// None.
    Good,
    /// The call after this number of others.
    Once(u64, Errno),
    /// The call after this number of others, and each later call that changes something.
    From(u64, Errno),
    /// The next fsync of a file.
    Fsync(Errno),
    /// The next write to this offset of a file.
    Write(u64, Errno),
}

pub(super) struct Control {
    plan: Mutex<Plan>,
    failed: Mutex<u64>,
    reads: Mutex<u64>,
    opens: Mutex<u64>,
    /// Files with a failed fsync. As on ext4, later writes to such a file stay in memory, and fsync still succeeds, until its pages are
    /// dropped.
    lost_writes: Mutex<BTreeSet<InodeId>>,
    /// Number of failed fsyncs of each file. Each descriptor that was open at a failure reports it once.
    errors: Mutex<BTreeMap<InodeId, u64>>,
    /// The file system shows the mtime as ctime.
    ctime_is_mtime: AtomicBool,
    /// The descriptor that wrote a file may also set its size and time.
    writers_finish: AtomicBool,
    syncs: Mutex<u64>,
}

impl Control {
    /// Lets the descriptor that wrote a file also set its size and time.
    pub(super) fn allow_writers_to_finish(&self) {
        self.writers_finish.store(true, Ordering::Relaxed);
    }

    /// Number of fsyncs of files so far.
    pub(super) fn syncs(&self) -> u64 {
        *self.syncs.lock()
    }

    /// Shows the mtime of files as their ctime.
    pub(super) fn show_ctime_as_mtime(&self) {
        self.ctime_is_mtime.store(true, Ordering::Relaxed);
    }

    fn seen(&self, stat: FileStat) -> FileStat {
        match self.ctime_is_mtime.load(Ordering::Relaxed) {
            true => FileStat { ctime: stat.mtime, ..stat },
            false => stat,
        }
    }

    pub(super) fn set(&self, plan: Plan) {
        *self.plan.lock() = plan;
        *self.failed.lock() = 0;
    }

    /// Number of calls that failed since the plan was set.
    pub(super) fn failed(&self) -> u64 {
        *self.failed.lock()
    }

    /// Number of reads of file content so far.
    pub(super) fn reads(&self) -> u64 {
        *self.reads.lock()
    }

    /// Number of opens for reading so far.
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
        if let Plan::Write(position, errno) = plan
            && position == offset
        {
            *self.plan.lock() = Plan::Once(0, errno);
        }
        self.call(true)
    }
}

/// A shared file system that fails as its `Control` plans.
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
            lost_writes: Mutex::default(),
            errors: Mutex::default(),
            ctime_is_mtime: AtomicBool::default(),
            writers_finish: AtomicBool::default(),
            syncs: Mutex::default(),
        };
        Self { inner, control: Arc::new(control), mount: None }
    }

    /// The same file system on another machine, through this mount.
    pub(super) fn mounted(&self, mount: Arc<Mount>) -> Self {
        Self { inner: self.inner.clone(), control: self.control.clone(), mount: Some(mount) }
    }

    fn wrap(&self, file: Arc<dyn SharedFile>) -> Result<Arc<dyn SharedFile>> {
        let inode = file.stat()?.inode_id();
        let (control, reported) = (self.control.clone(), Mutex::new(self.control.errors(inode)));
        let (unsynced, mount) = (Mutex::default(), self.mount.clone());
        let written = AtomicBool::new(false);
        Ok(Arc::new(FaultyFile { inner: file, inode, unsynced, reported, written, control, mount }))
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
    /// Previous content of each write since the last fsync; a failed fsync restores it.
    unsynced: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Errors of the file that this descriptor has reported, or that precede its open.
    reported: Mutex<u64>,
    /// The file was written through this descriptor.
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
        if self.control.lost_writes.lock().contains(&self.inode) {
            return self.control.call(true);
        }
        let mut before = vec![0; bytes.len()];
        self.inner.read_at(&mut before, offset)?;
        self.unsynced.lock().push((offset, before));
        if let Err(fault) = self.control.write(offset) {
            // A full disk also writes a part.
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
        self.mount.iter().for_each(|mount| mount.truncated(self.inode));
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
        let reported = std::mem::replace(&mut *self.reported.lock(), self.control.errors(self.inode));
        if reported < self.control.errors(self.inode) {
            return Err(Fault::new(Errno::EIO, "failed for another descriptor"));
        }
        if let Err(fault) = self.control.fsync() {
            self.control.lost_writes.lock().insert(self.inode);
            *self.control.errors.lock().entry(self.inode).or_default() += 1;
            *self.reported.lock() += 1;
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
        self.control.lost_writes.lock().remove(&self.inode);
        self.inner.forget_pages()
    }
    fn change(&self, change: &AttrChange) -> Result<()> {
        self.control.call(true)?;
        self.mount.iter().for_each(|mount| mount.changed(self.inode, change));
        self.inner.change(change)
    }
    fn writer_sets_times(&self) -> bool {
        self.control.writers_finish.load(Ordering::Relaxed)
    }
}

impl SharedFs for FaultyFs {
    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        self.inner.open_file_cache()
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
