//! Disks: fixed-size byte storage that outlives the agent's process.
//!
//! Disks do not verify content; what they store carries its own checksums.

pub mod file;
mod free_clock;
mod host;
pub mod memory;
#[cfg(test)]
mod tests;
pub mod uring;

use crate::Runtime;
use crate::slab::{Frame, Payload};
use file::FileDisk;
use futures_util::future::BoxFuture;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use tameike_core::Result;
use tameike_core::limits::BLOCK_SIZE;
use uring::{Direct, UringDisk};

pub use free_clock::{FreeClock, is_as_of};
pub use host::HostDevice;

/// A file or device of fixed size.
///
/// Ranges must lie within the disk, and consist of whole blocks of [`BLOCK_SIZE`] bytes, on the disk and in the frame: direct I/O
/// requires that. A call whose future is dropped may still take effect at any time.
///
/// Concurrent reads and writes of the same bytes are unordered. An acknowledged write survives the agent's process. It survives a
/// power loss only after a later [`Disk::sync`].
pub trait Disk: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// True if the open created the disk, so that no space is allocated for it yet.
    fn is_new(&self) -> bool;
    /// Reads into `range` of `frame` from byte `offset` of the disk. Returns the frame.
    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)>;
    /// Writes all of `payload` at byte `offset` of the disk.
    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged writes durable.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// Allocates space for `range` below, so that writes to it neither wait for space nor fail for lack of it. The content stays.
    /// Refused if it would take much of the free space; a failed call may have allocated a part.
    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>>;
    /// Frees the space of `range` below; its content becomes undefined.
    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>>;
    /// A read-only descriptor for other processes of this host, if the disk is in memory: they see acknowledged writes, and never
    /// wait.
    fn memory(&self) -> Option<OwnedFd> {
        None
    }
}

/// The memory of a disk, for direct reads by other processes of this host.
#[derive(Debug)]
pub struct DiskMemory {
    /// The bytes of the disk.
    pub bytes: OwnedFd,
    /// The [`FreeClock`] of the disk.
    pub clock: OwnedFd,
}

/// Panics unless the call consists of whole blocks. A real device would refuse others, but on some machines only.
fn assert_whole_blocks(offset: u64, range: &Range<u32>) {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let places = [offset, range.start.into(), range.end.into()];
    assert!(
        places.iter().all(|place| place.is_multiple_of(BLOCK)),
        "{offset}, {range:?}: not of whole blocks"
    );
}

/// Opens or creates a disk of at least `size` bytes on the file `path`. With `direct`, and if the machine supports it, its calls
/// bypass the page cache. A disk in memory needs no bypass.
pub fn open(path: &Path, size: u64, runtime: &Runtime, direct: Option<&Direct>) -> Result<Arc<dyn Disk>> {
    let file = FileDisk::open(path, size, runtime.clone())?;
    let Some(direct) = direct.filter(|_| !file.is_in_memory()) else { return Ok(Arc::new(file)) };
    let name = path.display();
    match UringDisk::open(&file, direct, runtime) {
        Ok(disk) => {
            log::info!("{name} is accessed by O_DIRECT and io_uring");
            Ok(Arc::new(disk))
        }
        Err(why) => {
            log::warn!("{name} is accessed through the page cache, which costs a copy: {why}");
            Ok(Arc::new(file))
        }
    }
}

/// An append-only file, for the log.
pub trait AppendFile: Send + Sync {
    /// Appends bytes. When it returns, they survive the agent's process. A failed append may leave a part of the bytes: truncate
    /// the file before the next one. Appends must not overlap.
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged appends durable.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// Reads the whole content.
    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>>;
    /// Truncates the file to `size` bytes.
    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>>;
}
