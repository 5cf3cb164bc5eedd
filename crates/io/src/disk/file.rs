//! Disk and log on files, by positioned reads and writes.
//!
//! On tmpfs the calls run on the caller's thread, since they never wait for a device: a switch to another thread would cost more
//! than the copy. On other file systems they run in [`Runtime::block`].

mod lock;

use super::{AppendFile, Disk, assert_whole_blocks};
use crate::Runtime;
use crate::os::owned;
use crate::slab::{Frame, Payload};
use futures_util::future::{BoxFuture, FutureExt, ready};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno as Os, retry_on_intr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::{Fault, Result};

pub use lock::FileLock;

/// Divisor of a file system's free space that bounds a single allocation.
const ALLOCATION_MAX_PART: u64 = 8;

/// An open file, and its path for messages.
struct OpenFile {
    fd: OwnedFd,
    path: PathBuf,
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self> {
        let fd = owned::open_regular(path, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens another descriptor of the file, for reads only.
    fn open_to_read(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|error| self.fault("open", error))
    }

    fn fault(&self, doing: &str, error: Os) -> Fault {
        fault(format_args!("{doing} {}", self.path.display()), error)
    }

    fn size(&self) -> Result<u64> {
        let status = rustix::fs::fstat(&self.fd).map_err(|error| self.fault("stat", error))?;
        Ok(status.st_size.cast_unsigned())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.fd, size).map_err(|error| self.fault("set the size of", error))
    }

    /// Sets `O_DIRECT`: reads and writes bypass the page cache, and must be of whole blocks.
    fn pass_page_cache(&self) -> std::result::Result<(), String> {
        let found = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        // Kernels before 6.1 do not report the alignment. Then a block suffices if the file system supports `O_DIRECT` at all.
        if let Ok(found) = found
            && found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && !(1..=BLOCK_SIZE as u32).contains(&found.stx_dio_offset_align.max(found.stx_dio_mem_align))
        {
            return Err(format!(
                "the file system requires an alignment of {} bytes for O_DIRECT (0: not supported)",
                found.stx_dio_offset_align
            ));
        }
        rustix::fs::fcntl_getfl(&self.fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT))
            .map_err(|error| format!("the file system does not support O_DIRECT ({error})"))
    }

    fn in_memory(&self) -> Result<bool> {
        let status = rustix::fs::fstatfs(&self.fd).map_err(|error| self.fault("statfs of", error))?;
        Ok(status.f_type == libc::TMPFS_MAGIC)
    }

    fn read(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let read = retry_on_intr(|| rustix::io::pread(&self.fd, &mut *bytes, offset));
            match read.map_err(|error| self.fault("read", error))? {
                0 => {
                    return Err(Fault::io(format!(
                        "read {}: it ends at byte {offset}; another process truncated it",
                        self.path.display()
                    )));
                }
                count => {
                    bytes = &mut bytes[count..];
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }

    fn write(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let written = retry_on_intr(|| rustix::io::pwrite(&self.fd, bytes, offset));
            match written.map_err(|error| self.fault("write", error))? {
                0 => return Err(self.fault("write", Os::IO)),
                count => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(|error| self.fault("sync", error))
    }

    /// Leaves space for other files of the file system, such as the log and table of the same store.
    fn allocate(&self, range: Range<u64>) -> Result<()> {
        let size = range.end - range.start;
        let allocated = rustix::fs::fstatvfs(&self.fd).and_then(|found| {
            if found.f_bavail.saturating_mul(found.f_frsize) / ALLOCATION_MAX_PART < size {
                return Err(Os::NOSPC);
            }
            self.fallocate_keep_size(range)
        });
        allocated.map_err(|error| self.fault("allocate space for", error))
    }

    fn fallocate_keep_size(&self, range: Range<u64>) -> std::result::Result<(), Os> {
        let size = range.end - range.start;
        rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, range.start, size)
    }

    /// Preallocates `size` bytes if the file system can. Otherwise writes report a full disk.
    fn preallocate(&self, size: u64) {
        match self.fallocate_keep_size(0..size) {
            Ok(()) | Err(Os::OPNOTSUPP) => {}
            Err(error) => log::warn!("{}", self.fault("allocate space for", error)),
        }
    }

    /// Frees the space of a range. A file system without support keeps it.
    fn discard(&self, range: Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.fd, flags, range.start, range.end - range.start) {
            Ok(()) | Err(Os::OPNOTSUPP) => Ok(()),
            Err(error) => Err(self.fault("free space of", error)),
        }
    }
}

fn fault(doing: impl std::fmt::Display, error: Os) -> Fault {
    Fault::from_os(doing, &std::io::Error::from(error))
}

/// A file, and the place where its calls run.
#[derive(Clone)]
struct Backing {
    file: Arc<OpenFile>,
    runtime: Runtime,
    inline: bool,
}

impl Backing {
    fn open(path: &Path, runtime: Runtime) -> Result<Self> {
        let file = Arc::new(OpenFile::open(path)?);
        let inline = file.in_memory()?;
        Ok(Self { file, runtime, inline })
    }

    fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OpenFile) -> T + Send + 'static,
    ) -> BoxFuture<'static, T> {
        if self.inline { ready(call(&self.file)).boxed() } else { self.run_apart(call) }
    }

    /// Never on the caller's thread: allocating or freeing many pages takes milliseconds, also in memory.
    fn run_apart<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OpenFile) -> T + Send + 'static,
    ) -> BoxFuture<'static, T> {
        let file = self.file.clone();
        self.runtime.block(move || call(&file)).boxed()
    }
}

/// A disk on a sparse file, by blocking calls: writes allocate space, and discards free it.
#[derive(Clone)]
pub struct FileDisk {
    backing: Backing,
    size: u64,
    is_new: bool,
}

impl FileDisk {
    /// Opens or creates the file. A file larger than `size` bytes keeps its size.
    pub fn open(path: &Path, size: u64, runtime: Runtime) -> Result<Self> {
        let backing = Backing::open(path, runtime)?;
        let found = backing.file.size()?;
        let size = size.max(found);
        backing.file.set_size(size)?;
        Ok(Self { backing, size, is_new: found == 0 })
    }

    /// True if its calls never wait for a device.
    pub(super) fn is_in_memory(&self) -> bool {
        self.backing.inline
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.backing.file.fd.as_fd()
    }

    /// Makes all calls, also those of clones, bypass the page cache.
    pub(super) fn pass_page_cache(&self) -> std::result::Result<(), String> {
        self.backing.file.pass_page_cache()
    }

    pub(super) fn fault(&self, doing: &str, error: Os) -> Fault {
        self.backing.file.fault(doing, error)
    }

    /// As [`Disk::read`], for a part of the requested bytes.
    pub(super) fn fetch(
        &self,
        offset: u64,
        mut frame: Frame,
        range: Range<u32>,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        self.backing.run(move |file| {
            let result = file.read(&mut frame[range.start as usize..range.end as usize], offset);
            (frame, result)
        })
    }

    /// As [`Disk::write`], for a part of the requested bytes.
    pub(super) fn store(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        self.backing.run(move |file| file.write(&payload, offset))
    }
}

impl Disk for FileDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)> {
        assert_whole_blocks(offset, &range);
        self.fetch(offset, frame, range)
    }

    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        assert_whole_blocks(offset, &payload.range());
        self.store(offset, payload)
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        if self.backing.inline { ready(Ok(())).boxed() } else { self.backing.run(OpenFile::sync) }
    }

    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.backing.run_apart(move |file| file.allocate(range))
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.backing.run_apart(move |file| file.discard(range))
    }

    fn memory(&self) -> Option<OwnedFd> {
        if !self.backing.inline {
            return None;
        }
        let opened = self.backing.file.open_to_read();
        opened
            .inspect_err(|fault| {
                log::warn!("other agents of this host cannot read the device directly: {fault}")
            })
            .ok()
    }
}

/// A log on a file with preallocated space, so that it can grow on a full disk. A truncation frees the space and allocates it
/// again at once.
pub struct FileLog {
    backing: Backing,
    size: Arc<AtomicU64>,
    preallocated_bytes: u64,
}

impl FileLog {
    /// Opens or creates the file. From the first truncation on, it has `preallocated_bytes` on the disk; in memory none.
    pub fn open(path: &Path, runtime: Runtime, preallocated_bytes: u64) -> Result<Self> {
        let backing = Backing::open(path, runtime)?;
        let size = Arc::new(AtomicU64::new(backing.file.size()?));
        let preallocated_bytes = if backing.inline { 0 } else { preallocated_bytes };
        Ok(Self { backing, size, preallocated_bytes })
    }
}

impl AppendFile for FileLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        let size = self.size.clone();
        self.backing.run(move |file| {
            file.write(&bytes, size.load(Ordering::Acquire))?;
            size.fetch_add(bytes.len() as u64, Ordering::AcqRel);
            Ok(())
        })
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        if self.backing.inline { ready(Ok(())).boxed() } else { self.backing.run(OpenFile::sync) }
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        let size = self.size.load(Ordering::Acquire);
        self.backing.run(move |file| {
            let mut bytes = vec![0; size as usize];
            file.read(&mut bytes, 0)?;
            Ok(bytes)
        })
    }

    fn truncate(&self, new_size: u64) -> BoxFuture<'static, Result<()>> {
        let (size, preallocated_bytes) = (self.size.clone(), self.preallocated_bytes);
        self.backing.run(move |file| {
            file.set_size(new_size)?;
            size.store(new_size, Ordering::Release);
            if preallocated_bytes > 0 {
                file.preallocate(preallocated_bytes);
            }
            Ok(())
        })
    }
}

/// Preallocates space for all of a file and `spare` bytes of growth, if the file system can.
pub fn preallocate(path: &Path, spare: u64) -> Result<()> {
    let file = OpenFile::open(path)?;
    file.preallocate(file.size()?.saturating_add(spare));
    Ok(())
}

/// True if the directory is on tmpfs.
pub fn in_memory(directory: &Path) -> Result<bool> {
    let status = rustix::fs::statfs(directory)
        .map_err(|error| fault(format_args!("statfs of {}", directory.display()), error))?;
    Ok(status.f_type == libc::TMPFS_MAGIC)
}

/// Makes the names in a directory durable.
pub fn sync_directory(directory: &Path) -> Result<()> {
    let open =
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    open.and_then(rustix::fs::fsync)
        .map_err(|error| fault(format_args!("sync the directory {}", directory.display()), error))
}

/// Truncates a file to free its space, also if other processes have it open. A missing file is ignored; a symbolic link is not
/// followed.
pub fn truncate_to_empty(path: &Path) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()).and_then(|file| rustix::fs::ftruncate(file, 0)) {
        Ok(()) | Err(Os::NOENT) => Ok(()),
        Err(error) => Err(fault(format_args!("free the space of {}", path.display()), error)),
    }
}
