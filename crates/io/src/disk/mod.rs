//! Disks: numbered bytes that survive the agent.
//!
//! A disk does not check content; what is written through it carries its own checksums.

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
/// Ranges must lie within it, and are whole blocks of [`BLOCK_SIZE`] bytes, on the disk as in the frame: devices read and write
/// memory in such pieces, so that nothing need be copied. A call whose future is dropped may still take effect, at any time.
///
/// Reads and writes of the same bytes at the same time have no order. A write is safe against power loss only
/// after a later [`Disk::sync`]; against the death of the agent it is safe once acknowledged.
pub trait Disk: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Whether it was made when it was opened, so that all of it had no space of what is below.
    fn is_new(&self) -> bool;
    /// Reads into `range` of `frame` from byte `offset` of the disk, and gives the frame back.
    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)>;
    /// Writes all of `payload` at byte `offset` of the disk.
    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged writes safe against power loss.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// Has whatever is below set space aside for `range`, so that writes to it neither wait for space nor lack it. What is
    /// written there stays. Where it would take much of what others may need, it is refused; a call that fails may have done
    /// a part.
    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>>;
    /// Gives the space of `range` back to whatever is below; its content is then unspecified.
    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>>;
    /// A descriptor for other processes of this host to read it by, not to write, when it lies in memory: then all of them see
    /// what is acknowledged, and never wait.
    fn memory(&self) -> Option<OwnedFd> {
        None
    }
}

/// A disk in memory, for other processes of this host to read by themselves.
#[derive(Debug)]
pub struct DiskMemory {
    /// Its bytes.
    pub bytes: OwnedFd,
    /// Its [`FreeClock`].
    pub clock: OwnedFd,
}

/// Panics unless the call is of whole blocks: a real device would refuse it, on some machines only.
fn assert_whole_blocks(offset: u64, range: &Range<u32>) {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let places = [offset, range.start.into(), range.end.into()];
    assert!(
        places.iter().all(|place| place.is_multiple_of(BLOCK)),
        "{offset}, {range:?}: not of whole blocks"
    );
}

/// Opens the disk on the file `path`, or makes it, of at least `size` bytes: past the page cache when told how
/// (`direct`) and where the machine allows it, else through it. In memory there is nothing to pass by.
///
/// # Errors
/// What the system says, with the file's name.
pub fn open(path: &Path, size: u64, runtime: &Runtime, direct: Option<&Direct>) -> Result<Arc<dyn Disk>> {
    let file = FileDisk::open(path, size, runtime.clone())?;
    let Some(direct) = direct.filter(|_| !file.is_in_memory()) else { return Ok(Arc::new(file)) };
    let name = path.display();
    match UringDisk::open(&file, direct, runtime) {
        Ok(disk) => {
            log::info!("{name} is read and written past the page cache, by io_uring");
            Ok(Arc::new(disk))
        }
        Err(why) => {
            log::warn!("{name} is read and written through the page cache, which costs a copy: {why}");
            Ok(Arc::new(file))
        }
    }
}

/// A file that only grows at its end, until it is begun anew: the log's.
pub trait AppendFile: Send + Sync {
    /// Appends at the end; when it returns, the bytes survive the death of the agent. An append that failed may
    /// have left a part of the bytes: cut the file before the next one. Appends do not overlap.
    fn append(&self, bytes: Vec<u8>) -> BoxFuture<'static, Result<()>>;
    /// Makes all acknowledged appends safe against power loss.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
    /// The whole content.
    fn read_all(&self) -> BoxFuture<'static, Result<Vec<u8>>>;
    /// Cuts the file to `size` bytes.
    fn truncate(&self, size: u64) -> BoxFuture<'static, Result<()>>;
}
