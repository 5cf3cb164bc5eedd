//! Disk and log on files, by positioned reads and writes.
//!
//! On a file system in memory (tmpfs) the calls run on the caller's thread, as they never wait for a device: a
//! hop to another thread would cost more than the copy. Elsewhere they run in [`Runtime::block`].

mod lock;

use super::{AppendFile, Disk, assert_whole_blocks};
use crate::Runtime;
use crate::os::owned;
use crate::slab::{Frame, Payload};
use futures_util::future::{BoxFuture, FutureExt, ready};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno as Os;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::{Fault, Result};

pub use lock::FileLock;

const TMPFS_MAGIC: u64 = 0x0102_1994;
/// At most one part in so many of what is free on a file system is set aside at once.
const ALLOCATION_MAX_PART: u64 = 8;

/// An open file with its name, for messages.
struct OpenFile {
    fd: OwnedFd,
    path: PathBuf,
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self> {
        let fd = owned::open_regular(path, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// One more descriptor of the file, only to read by.
    fn open_to_read(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|error| self.fault("open", error))
    }

    fn fault(&self, doing: &str, error: Os) -> Fault {
        fault(format_args!("{doing} {}", self.path.display()), error)
    }

    fn size(&self) -> Result<u64> {
        let status = rustix::fs::fstat(&self.fd).map_err(|error| self.fault("look at", error))?;
        Ok(status.st_size.cast_unsigned())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.fd, size).map_err(|error| self.fault("set the size of", error))
    }

    /// Has reads and writes go to the device itself. They must be of whole blocks.
    fn pass_page_cache(&self) -> std::result::Result<(), String> {
        let found = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        // A kernel before 6.1 does not tell; then a block is enough wherever it is possible at all.
        if let Ok(found) = found
            && found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && !(1..=BLOCK_SIZE as u32).contains(&found.stx_dio_offset_align.max(found.stx_dio_mem_align))
        {
            return Err(format!(
                "the file system reads and writes past the page cache in pieces of {} bytes (0: not at all)",
                found.stx_dio_offset_align
            ));
        }
        rustix::fs::fcntl_getfl(&self.fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT))
            .map_err(|error| format!("the file system does not read and write past the page cache ({error})"))
    }

    fn in_memory(&self) -> Result<bool> {
        let status =
            rustix::fs::fstatfs(&self.fd).map_err(|error| self.fault("look at the disk of", error))?;
        Ok(status.f_type.cast_unsigned() == TMPFS_MAGIC)
    }

    fn read(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pread(&self.fd, &mut *bytes, offset) {
                Ok(0) => {
                    return Err(Fault::io(format!(
                        "read {}: it ends at byte {offset}; it was cut by something else",
                        self.path.display()
                    )));
                }
                Ok(count) => {
                    bytes = &mut bytes[count..];
                    offset += count as u64;
                }
                Err(Os::INTR) => {}
                Err(error) => return Err(self.fault("read", error)),
            }
        }
        Ok(())
    }

    fn write(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.fd, bytes, offset) {
                Ok(0) => return Err(self.fault("write", Os::IO)),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(Os::INTR) => {}
                Err(error) => return Err(self.fault("write", error)),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(|error| self.fault("sync", error))
    }

    /// Leaves the others on the file system what they may need: among them are the log and the table of the same store.
    fn allocate(&self, range: Range<u64>) -> Result<()> {
        let size = range.end - range.start;
        let allocated = rustix::fs::fstatvfs(&self.fd).and_then(|found| {
            if found.f_bavail.saturating_mul(found.f_frsize) / ALLOCATION_MAX_PART < size {
                return Err(Os::NOSPC);
            }
            self.set_aside(range)
        });
        allocated.map_err(|error| self.fault("set space aside for", error))
    }

    fn set_aside(&self, range: Range<u64>) -> std::result::Result<(), Os> {
        let size = range.end - range.start;
        rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, range.start, size)
    }

    /// Has space for `size` bytes from the start on, where the file system can. Without it a full disk is met by the
    /// writes.
    fn prepare_room(&self, size: u64) {
        match self.set_aside(0..size) {
            Ok(()) | Err(Os::OPNOTSUPP) => {}
            Err(error) => log::warn!("{}", self.fault("set space aside for", error)),
        }
    }

    /// Gives space back where the file system can; where it cannot, the space stays with the file.
    fn discard(&self, range: Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.fd, flags, range.start, range.end - range.start) {
            Ok(()) | Err(Os::OPNOTSUPP) => Ok(()),
            Err(error) => Err(self.fault("give back space of", error)),
        }
    }
}

fn fault(doing: impl std::fmt::Display, error: Os) -> Fault {
    Fault::from_os(doing, &std::io::Error::from(error))
}

/// Where a file's calls run.
#[derive(Clone)]
struct Place {
    file: Arc<OpenFile>,
    runtime: Runtime,
    inline: bool,
}

impl Place {
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

    /// Never on the caller's thread: to take or give back many pages takes milliseconds, also in memory.
    fn run_apart<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OpenFile) -> T + Send + 'static,
    ) -> BoxFuture<'static, T> {
        let file = self.file.clone();
        self.runtime.block(move || call(&file)).boxed()
    }
}

/// A disk on one file, by calls that may wait. The file is sparse: it takes space as it is written, and gives it back on discard.
#[derive(Clone)]
pub struct FileDisk {
    place: Place,
    size: u64,
    is_new: bool,
}

impl FileDisk {
    /// Opens the file, or makes it. A file already larger than `size` bytes keeps its size.
    ///
    /// # Errors
    /// What the system says, with the file's name.
    pub fn open(path: &Path, size: u64, runtime: Runtime) -> Result<Self> {
        let place = Place::open(path, runtime)?;
        let found = place.file.size()?;
        let size = size.max(found);
        place.file.set_size(size)?;
        Ok(Self { place, size, is_new: found == 0 })
    }

    /// Whether its calls never wait for a device.
    pub(super) fn is_in_memory(&self) -> bool {
        self.place.inline
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.place.file.fd.as_fd()
    }

    /// Has all calls, also those of clones, pass the page cache by.
    ///
    /// # Errors
    /// Why they cannot, in words.
    pub(super) fn pass_page_cache(&self) -> std::result::Result<(), String> {
        self.place.file.pass_page_cache()
    }

    pub(super) fn fault(&self, doing: &str, error: Os) -> Fault {
        self.place.file.fault(doing, error)
    }

    /// As [`Disk::read`], of bytes that may be a part of what was asked for.
    pub(super) fn fetch(
        &self,
        offset: u64,
        mut frame: Frame,
        range: Range<u32>,
    ) -> BoxFuture<'static, (Frame, Result<()>)> {
        self.place.run(move |file| {
            let result = file.read(&mut frame[range.start as usize..range.end as usize], offset);
            (frame, result)
        })
    }

    /// As [`Disk::write`], of bytes that may be a part of what was asked for.
    pub(super) fn store(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        self.place.run(move |file| file.write(&payload, offset))
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
        if self.place.inline { ready(Ok(())).boxed() } else { self.place.run(OpenFile::sync) }
    }

    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.place.run_apart(move |file| file.allocate(range))
    }

    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.place.run_apart(move |file| file.discard(range))
    }

    fn memory(&self) -> Option<OwnedFd> {
        if !self.place.inline {
            return None;
        }
        let opened = self.place.file.open_to_read();
        opened
            .inspect_err(|fault| log::warn!("other agents of this host are sent what they read: {fault}"))
            .ok()
    }
}

/// A log on one file, that has space set aside for what it is to grow to, so that a full disk does not stop it. When it is
/// cut the space goes back to the file system, and is asked for again at once.
pub struct FileLog {
    place: Place,
    size: Arc<AtomicU64>,
    room: u64,
}

impl FileLog {
    /// Opens the file, or makes it. From its first cut on it has space for `room` bytes; in memory it takes none ahead.
    ///
    /// # Errors
    /// What the system says, with the file's name.
    pub fn open(path: &Path, runtime: Runtime, room: u64) -> Result<Self> {
        let place = Place::open(path, runtime)?;
        let size = Arc::new(AtomicU64::new(place.file.size()?));
        let room = if place.inline { 0 } else { room };
        Ok(Self { place, size, room })
    }
}

impl AppendFile for FileLog {
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>> {
        let size = self.size.clone();
        self.place.run(move |file| {
            file.write(&bytes, size.load(Ordering::Acquire))?;
            size.fetch_add(bytes.len() as u64, Ordering::AcqRel);
            Ok(())
        })
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        if self.place.inline { ready(Ok(())).boxed() } else { self.place.run(OpenFile::sync) }
    }

    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>> {
        let size = self.size.load(Ordering::Acquire);
        self.place.run(move |file| {
            let mut bytes = vec![0; size as usize];
            file.read(&mut bytes, 0)?;
            Ok(bytes)
        })
    }

    fn truncate(&self, new_size: u64) -> BoxFuture<'static, Result<()>> {
        let (size, room) = (self.size.clone(), self.room);
        self.place.run(move |file| {
            file.set_size(new_size)?;
            size.store(new_size, Ordering::Release);
            if room > 0 {
                file.prepare_room(room);
            }
            Ok(())
        })
    }
}

/// Has space set aside for all of a file and for `spare` bytes to grow by, where the file system can.
///
/// # Errors
/// The file cannot be opened.
pub fn spare_room(path: &Path, spare: u64) -> Result<()> {
    let file = OpenFile::open(path)?;
    file.prepare_room(file.size()?.saturating_add(spare));
    Ok(())
}

/// Whether the directory lies on a file system in memory.
///
/// # Errors
/// What the system says, with the directory's name.
pub fn in_memory(directory: &Path) -> Result<bool> {
    let status = rustix::fs::statfs(directory)
        .map_err(|error| fault(format_args!("look at the disk of {}", directory.display()), error))?;
    Ok(status.f_type.cast_unsigned() == TMPFS_MAGIC)
}

/// Makes the names in a directory safe against power loss.
///
/// # Errors
/// What the system says, with the directory's name.
pub fn sync_directory(directory: &Path) -> Result<()> {
    let open =
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    open.and_then(rustix::fs::fsync)
        .map_err(|error| fault(format_args!("sync the directory {}", directory.display()), error))
}

/// Gives the space of a file back, also for those who have descriptors of it. What is not there has none; a link is not followed.
///
/// # Errors
/// What the system says, with the file's name.
pub fn cut(path: &Path) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()).and_then(|file| rustix::fs::ftruncate(file, 0)) {
        Ok(()) | Err(Os::NOENT) => Ok(()),
        Err(error) => Err(fault(format_args!("give back the space of {}", path.display()), error)),
    }
}
