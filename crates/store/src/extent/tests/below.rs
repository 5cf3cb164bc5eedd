//! A disk on a simulated file system of limited size.

use super::*;
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;

/// A disk of a world, with the file system below it.
#[derive(Clone)]
pub(super) struct DiskBelow {
    disk: MemoryDisk,
    below: Arc<Mutex<FileSystem>>,
}

#[derive(Default)]
pub(super) struct FileSystem {
    /// Number of free blocks.
    pub(super) free: u64,
    /// Blocks of the disk that are allocated.
    allocated: BTreeSet<u64>,
    pub(super) syncs: usize,
    /// Preallocated ranges of bytes.
    pub(super) preallocated: Vec<Range<u64>>,
    /// Preallocation fails.
    pub(super) refuses: bool,
}

impl FileSystem {
    /// Allocates as much as fits, as file systems do.
    fn allocate(&mut self, bytes: Range<u64>) -> Result<()> {
        for block in blocks_at(bytes) {
            if self.allocated.contains(&block) {
                continue;
            }
            let Some(free) = self.free.checked_sub(1) else {
                return Err(Fault::new(Errno::ENOSPC, "injected: the disk below is full"));
            };
            self.free = free;
            self.allocated.insert(block);
        }
        Ok(())
    }

    fn preallocate(&mut self, bytes: Range<u64>) -> Result<()> {
        self.preallocated.push(bytes.clone());
        match self.refuses {
            true => Err(Fault::new(Errno::ENOSPC, "injected: no space")),
            false => self.allocate(bytes),
        }
    }

    fn release(&mut self, bytes: Range<u64>) {
        self.free += blocks_at(bytes).filter(|block| self.allocated.remove(block)).count() as u64;
    }

    pub(super) fn allocated_blocks(&self) -> u64 {
        self.allocated.len() as u64
    }
}

fn blocks_at(bytes: Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_SIZE as u64..bytes.end / BLOCK_SIZE as u64
}

impl DiskBelow {
    /// Puts the world's disk on a file system with `free` free blocks.
    pub(super) fn over(world: &World, free: u64) -> Self {
        let below = FileSystem { free, ..FileSystem::default() };
        Self { disk: world.disk.clone(), below: Arc::new(Mutex::new(below)) }
    }

    pub(super) fn below(&self) -> MutexGuard<'_, FileSystem> {
        self.below.lock()
    }
}

impl Disk for DiskBelow {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn is_new(&self) -> bool {
        self.disk.is_new()
    }
    fn read(&self, offset: u64, frame: Frame, range: Range<u32>) -> BoxFuture<'static, (Frame, Result<()>)> {
        self.disk.read(offset, frame, range)
    }
    fn write(&self, offset: u64, payload: Payload) -> BoxFuture<'static, Result<()>> {
        match self.below().allocate(offset..offset + payload.len() as u64) {
            Ok(()) => self.disk.write(offset, payload),
            Err(fault) => async { Err(fault) }.boxed(),
        }
    }
    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.below().syncs += 1;
        self.disk.sync()
    }
    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let allocated = self.below().preallocate(range);
        async { allocated }.boxed()
    }
    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.below().release(range.clone());
        self.disk.discard(range)
    }
}
