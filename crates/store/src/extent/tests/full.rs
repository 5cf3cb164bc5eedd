//! A store on a disk that other data fills.

use super::*;
use tameike_core::HomeSet;

const BLOCKS_PER_MIB: u64 = MIB / BLOCK_SIZE as u64;

/// Regression: retired blocks kept their space while writes went to holes of the disk, so that a view on a disk that
/// had been full and was emptied got less space than its capacity.
#[test]
fn blocks_that_wait_for_a_sync_are_freed_when_the_disk_below_is_full() {
    for seed in 0..3 {
        let world = World::new(seed, 128 << 20, [0, 32 * MIB, 0]);
        let disk = DiskBelow::over(&world, 36 * BLOCKS_PER_MIB);
        let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
        for round in 0..4 {
            let bytes = pattern(round, UNIT_SIZE - 8);
            for index in 0..30 {
                world.write(&store, shared(index), 0, &bytes).unwrap();
            }
            (0..30).for_each(|index| world.whole(&store, shared(index), &bytes));
            world.machine.run(store.truncate(&HomeSet::All, shared(0).inode, 0)).unwrap();
        }
        world.rest_and_check(&store);
        assert!(disk.below().allocated_blocks() <= 16 * BLOCKS_PER_MIB);
    }
}

#[test]
fn a_full_disk_refuses_new_units_and_accepts_overwrites() {
    for seed in 0..3 {
        let world = World::new(seed, 128 << 20, [0, 64 * MIB, 0]);
        let disk = DiskBelow::over(&world, 20 * BLOCKS_PER_MIB);
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
        disk.below().free = 0;
        for index in 19..22 {
            let refused = world.write(&store, shared(index), 0, &pattern(5, UNIT_SIZE - 8));
            let Err(fault) = refused else { continue };
            assert_eq!(fault.errno, Errno::ENOSPC);
            assert!(fault.to_string().contains("the space of the disk below the extents file"), "{fault}");
        }
        assert!(store.load(shared(21)).unwrap().is_none());
        (0..19).for_each(|index| world.whole(&store, shared(index), &pattern(4, UNIT_SIZE - 8)));
        disk.below().free = 20 * BLOCKS_PER_MIB;
        for index in 19..36 {
            world.write(&store, shared(index), 0, &pattern(5, UNIT_SIZE - 8)).unwrap();
        }
        world.rest_and_check(&store);
        let used = store.space(View::JobShared).used / BLOCK_SIZE as u64;
        let allocated = disk.below().allocated_blocks();
        assert!((used..=used + 16 * BLOCKS_PER_MIB).contains(&allocated), "{allocated} for {used}");
    }
}

#[test]
fn clean_units_are_evicted_when_the_disk_is_full() {
    let world = World::new(1, 128 << 20, [0, 0, 64 * MIB]);
    let disk = DiskBelow::over(&world, 20 * BLOCKS_PER_MIB);
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
