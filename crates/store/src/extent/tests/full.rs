//! A store on a disk that other data fills.

use super::*;
use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeSet;

const BLOCKS_PER_MIB: u64 = MIB / BLOCK_SIZE as u64;

/// A disk on a file system of limited size.
#[derive(Clone)]
pub(super) struct Crowded {
    disk: MemoryDisk,
    below: Arc<Mutex<FileSystem>>,
}

/// Number of free blocks, and blocks of the disk that are allocated.
#[derive(Default)]
struct FileSystem {
    free: u64,
    allocated: BTreeSet<u64>,
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

    fn release(&mut self, bytes: Range<u64>) {
        self.free += blocks_at(bytes).filter(|block| self.allocated.remove(block)).count() as u64;
    }
}

fn blocks_at(bytes: Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_SIZE as u64..bytes.end / BLOCK_SIZE as u64
}

impl Crowded {
    /// Puts the world's disk on a file system with `free` free blocks.
    pub(super) fn over(world: &World, free: u64) -> Self {
        let below = FileSystem { free, ..FileSystem::default() };
        Self { disk: world.disk.clone(), below: Arc::new(Mutex::new(below)) }
    }

    pub(super) fn leave(&self, free: u64) {
        self.below.lock().free = free;
    }

    pub(super) fn allocated(&self) -> u64 {
        self.below.lock().allocated.len() as u64
    }
}

impl Disk for Crowded {
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
        match self.below.lock().allocate(offset..offset + payload.len() as u64) {
            Ok(()) => self.disk.write(offset, payload),
            Err(fault) => async { Err(fault) }.boxed(),
        }
    }
    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        self.disk.sync()
    }
    fn allocate(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        let allocated = self.below.lock().allocate(range);
        async { allocated }.boxed()
    }
    fn discard(&self, range: Range<u64>) -> BoxFuture<'static, Result<()>> {
        self.below.lock().release(range.clone());
        self.disk.discard(range)
    }
}

/// Regression: retired blocks kept their space while writes went to holes of the disk, so that a view on a disk that
/// had been full and was emptied got less space than its capacity.
#[test]
fn blocks_that_wait_for_a_sync_are_freed_when_the_disk_below_is_full() {
    for seed in 0..3 {
        let world = World::new(seed, 128 << 20, [0, 32 * MIB, 0]);
        let disk = Crowded::over(&world, 36 * BLOCKS_PER_MIB);
        let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
        for round in 0..4 {
            let bytes = pattern(round, UNIT_SIZE - 8);
            for index in 0..30 {
                world.write(&store, shared(index), 0, &bytes).unwrap();
            }
            (0..30).for_each(|index| world.whole(&store, shared(index), &bytes));
            world.machine.run(store.truncate(shared(0).inode, 0)).unwrap();
        }
        world.rest_and_check(&store);
        assert!(disk.allocated() <= 16 * BLOCKS_PER_MIB);
    }
}

#[test]
fn a_full_disk_refuses_new_units_and_accepts_overwrites() {
    for seed in 0..3 {
        let world = World::new(seed, 128 << 20, [0, 64 * MIB, 0]);
        let disk = Crowded::over(&world, 20 * BLOCKS_PER_MIB);
        let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
        for index in 0..19 {
            world.write(&store, shared(index), 0, &pattern(1, UNIT_SIZE - 8)).unwrap();
        }
        for round in 2..5 {
            for index in 0..19 {
                world.write(&store, shared(index), 0, &pattern(round, UNIT_SIZE - 8)).unwrap();
            }
        }
        // Other data fills the disk.
        disk.leave(0);
        for index in 19..22 {
            let refused = world.write(&store, shared(index), 0, &pattern(5, UNIT_SIZE - 8));
            let Err(fault) = refused else { continue };
            assert_eq!(fault.errno, Errno::ENOSPC);
            assert!(fault.to_string().contains("the space of the disk below the extents file"), "{fault}");
        }
        assert!(store.load(shared(21)).unwrap().is_none());
        (0..19).for_each(|index| world.whole(&store, shared(index), &pattern(4, UNIT_SIZE - 8)));
        disk.leave(20 * BLOCKS_PER_MIB);
        for index in 19..36 {
            world.write(&store, shared(index), 0, &pattern(5, UNIT_SIZE - 8)).unwrap();
        }
        world.rest_and_check(&store);
        let used = store.space(View::JobShared).used / BLOCK_SIZE as u64;
        let allocated = disk.allocated();
        assert!((used..=used + 16 * BLOCKS_PER_MIB).contains(&allocated), "{allocated} for {used}");
    }
}

#[test]
fn clean_units_are_evicted_when_the_disk_is_full() {
    let world = World::new(1, 128 << 20, [0, 0, 64 * MIB]);
    let disk = Crowded::over(&world, 20 * BLOCKS_PER_MIB);
    let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
    let bytes = pattern(1, UNIT_SIZE - 8);
    (0..20).for_each(|index| world.fill(&store, cached(1, index), 0, &bytes));
    for index in 0..20 {
        world.write(&store, cached(2, index), 0, &bytes).unwrap();
    }
    (0..20).for_each(|index| world.whole(&store, cached(2, index), &bytes));
    let refused = world.write(&store, cached(2, 20), 0, &bytes);
    assert_eq!(refused.unwrap_err().errno, Errno::ENOSPC, "dirty units are not evicted");
    world.rest_and_check(&store);
}
