//! A shared file system that fails on purpose.

use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{
    Access, Allocate, FileStat, Pin, Seek, SharedDir, SharedFile, SharedFs, Special, TreeSpace, XattrMode,
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
}

pub(super) struct Control {
    plan: Mutex<Plan>,
    failed: Mutex<u64>,
    reads: Mutex<u64>,
}

impl Control {
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

    fn call(&self, changes: bool) -> Result<()> {
        let mut plan = self.plan.lock();
        let errno = match &mut *plan {
            Plan::Good => return Ok(()),
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
}

/// The wrapper.
pub(super) struct FaultyFs {
    pub(super) inner: Arc<dyn SharedFs>,
    pub(super) control: Arc<Control>,
}

impl FaultyFs {
    pub(super) fn new(inner: Arc<dyn SharedFs>) -> Self {
        Self {
            inner,
            control: Arc::new(Control {
                plan: Mutex::new(Plan::Good),
                failed: Mutex::new(0),
                reads: Mutex::new(0),
            }),
        }
    }

    fn wrap(&self, file: Arc<dyn SharedFile>) -> Arc<dyn SharedFile> {
        Arc::new(FaultyFile { inner: file, control: self.control.clone() })
    }
}

struct FaultyFile {
    inner: Arc<dyn SharedFile>,
    control: Arc<Control>,
}

impl SharedFile for FaultyFile {
    fn stat(&self) -> Result<FileStat> {
        self.control.call(false)?;
        self.inner.stat()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.control.call(false)?;
        *self.control.reads.lock() += 1;
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if let Err(fault) = self.control.call(true) {
            // As a full disk does: a part is written.
            let _ = self.inner.write_at(&bytes[..bytes.len() / 2], offset);
            return Err(fault);
        }
        self.inner.write_at(bytes, offset)
    }
    fn truncate(&self, size: u64) -> Result<()> {
        self.control.call(true)?;
        self.inner.truncate(size)
    }
    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        self.control.call(true)?;
        self.inner.allocate(how, offset, length)
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.control.call(false)?;
        self.inner.seek(what, offset)
    }
    fn sync(&self) -> Result<()> {
        self.control.call(true)?;
        self.inner.sync()
    }
    fn forget_pages(&self) -> Result<()> {
        self.control.call(false)?;
        self.inner.forget_pages()
    }
    fn change(&self, change: &AttrChange) -> Result<()> {
        self.control.call(true)?;
        self.inner.change(change)
    }
}

impl SharedFs for FaultyFs {
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        self.control.call(false)?;
        self.inner.stat(path)
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
        self.inner.open(path, access).map(|file| self.wrap(file))
    }
    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        self.control.call(true)?;
        self.inner.create(path, mode).map(|file| self.wrap(file))
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
        self.inner.rename(from, to, mode)
    }
    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.control.call(true)?;
        self.inner.link(from, to)
    }
    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        self.control.call(true)?;
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
