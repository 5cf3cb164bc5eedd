//! An open file of a [`PosixTree`](super::PosixTree).

use super::attributes::StatContext;
use super::{Allocate, FileStat, Seek, SharedFile, attributes, translate};
use crate::os::range_lock::{is_range_locked, try_lock_range};
use rustix::fs::{Advice, AtFlags, CWD, Gid, SeekFrom, StatxFlags, Uid, XattrFlags};
use rustix::io::{ReadWriteFlags, retry_on_intr};
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Fault, Result};

/// A descriptor, and its path for messages.
pub(super) struct PosixFile {
    pub(super) descriptor: OwnedFd,
    pub(super) path: Vec<u8>,
    pub(super) context: StatContext,
}

impl PosixFile {
    fn done<T>(&self, doing: &str, result: rustix::io::Result<T>) -> Result<T> {
        result.map_err(|error| translate::fault(doing, &self.path, error))
    }

    /// Calls `write` with the count of bytes written so far, until all are written. It returns the count of further bytes.
    fn write_all(&self, bytes: &[u8], write: impl Fn(u64) -> rustix::io::Result<usize>) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.done("write", retry_on_intr(|| write(written as u64)))? {
                0 => return self.done("write", Err(rustix::io::Errno::IO)),
                count => written += count,
            }
        }
        Ok(())
    }
}

impl SharedFile for PosixFile {
    fn stat(&self) -> Result<FileStat> {
        self.done("stat", attributes::open(self.context, &self.descriptor))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let place = offset + filled as u64;
            match self.read_some(&mut buffer[filled..], place)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.done("read", retry_on_intr(|| rustix::io::pread(&self.descriptor, &mut *buffer, offset)))
    }

    fn advise_exact(&self, is_exact: bool) {
        let advice = if is_exact { Advice::Random } else { Advice::Normal };
        // Only a hint: reads work without it.
        let _ = rustix::fs::fadvise(&self.descriptor, 0, None, advice);
    }

    fn prefetch(&self, offset: u64, length: u64) {
        // Only a hint: a read fetches what was not prefetched.
        let _ = rustix::fs::fadvise(&self.descriptor, offset, NonZeroU64::new(length), Advice::WillNeed);
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let write = |done| rustix::io::pwrite(&self.descriptor, &bytes[done as usize..], offset + done);
        self.write_all(bytes, write)
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes, |done| {
            // A file system without the flag writes at this offset.
            let end = rustix::fs::fstat(&self.descriptor)?.st_size as u64;
            let rest = [IoSlice::new(&bytes[done as usize..])];
            rustix::io::pwritev2(&self.descriptor, &rest, end, ReadWriteFlags::APPEND)
        })
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.done("truncate", rustix::fs::ftruncate(&self.descriptor, size))
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let flags = translate::allocate(how);
        self.done("allocate", rustix::fs::fallocate(&self.descriptor, flags, offset, length))
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        self.done("seek", rustix::fs::seek(&self.descriptor, from))
    }

    fn sync(&self) -> Result<()> {
        self.done("fsync", rustix::fs::fsync(&self.descriptor))
    }

    fn start_write_back(&self) {
        // SAFETY: the descriptor is open, and all other arguments are numbers; the range is the whole file.
        let _ =
            unsafe { libc::sync_file_range(self.descriptor.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn revalidate(&self) -> Result<()> {
        let now = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        match rustix::fs::statx(&self.descriptor, c"", now, StatxFlags::BASIC_STATS) {
            // On file systems that open by path, another file may have this one's path, or none.
            Err(rustix::io::Errno::NOENT) => Err(Errno::ESTALE.into()),
            looked => self.done("stat", looked.map(drop)),
        }
    }

    fn forget_pages(&self) -> Result<()> {
        self.done("fadvise", rustix::fs::fadvise(&self.descriptor, 0, None, Advice::DontNeed))
    }

    fn change(&self, change: &AttrChange) -> Result<()> {
        if change.size.is_some() || change.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let change = &self
            .done("stat", self.context.effective_change(change, || rustix::fs::fstat(&self.descriptor)))?;
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            self.done("chown", rustix::fs::fchown(&self.descriptor, uid, gid))?;
        }
        if let Some(bits) = change.mode {
            self.done("chmod", rustix::fs::fchmod(&self.descriptor, translate::mode(bits)))?;
        }
        match translate::times(change) {
            Some(times) => self.done("set times of", rustix::fs::futimens(&self.descriptor, &times)),
            None => Ok(()),
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let set = rustix::fs::fsetxattr(&self.descriptor, name, value, XattrFlags::empty());
        self.done("set an attribute of", set)
    }

    fn check_write(&self) -> Result<()> {
        self.done("write to", self.context.check_write(CWD, &attributes::name_of(&self.descriptor)))
    }

    fn try_lock(&self, offset: u64, length: u64) -> Result<bool> {
        self.locked(try_lock_range(self.descriptor.as_fd(), offset, length))
    }

    fn is_locked(&self, offset: u64, length: u64) -> Result<bool> {
        self.locked(is_range_locked(self.descriptor.as_fd(), offset, length))
    }
}

impl PosixFile {
    fn locked(&self, done: Result<bool>) -> Result<bool> {
        match done {
            // Cluster file systems without a lock service report one of these errors.
            Err(fault)
                if matches!(
                    fault.errno,
                    Errno::ENOLCK | Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP
                ) =>
            {
                Err(Fault::new(
                    Errno::EOPNOTSUPP,
                    format!("lock {}: {fault}", String::from_utf8_lossy(&self.path)),
                ))
            }
            done => done,
        }
    }
}
