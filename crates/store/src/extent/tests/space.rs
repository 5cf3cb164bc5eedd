//! Space for writers: preallocation, retired blocks, eviction.

use super::*;
use futures_util::future::FutureExt;
use parking_lot::Mutex;
use tameike_core::HomeId;

/// Regression: a store with a few overwrites synced its disk every second.
#[test]
fn a_few_retired_blocks_cause_no_sync() {
    let world = World::new(1, 128 << 20, [0, 128 * MIB, 0]);
    let disk = DiskBelow::over(&world, u64::MAX);
    let syncs = || disk.below().syncs;
    let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
    let retired = || store.accounting.lock().quarantined();
    for round in 0..20 {
        world.write(&store, shared(0), 0, &pattern(round, 8192)).unwrap();
        world.machine.rest(Duration::from_secs(1));
    }
    assert_eq!(syncs(), 0);
    assert_eq!(retired(), 19 * 2);
    world.machine.rest(Duration::from_secs(60));
    assert_eq!((syncs(), retired()), (1, 0), "the time limit frees them");

    // Syncs of programs free them as well.
    for round in 0..5 {
        world.write(&store, shared(0), 0, &pattern(round, 8192)).unwrap();
        world.machine.run(store.sync(true)).unwrap();
    }
    world.machine.rest(Duration::from_secs(3));
    assert_eq!((syncs(), retired()), (6, 2));
    world.machine.rest(Duration::from_secs(60));

    // Many retired blocks cause a sync.
    for round in 0..50 {
        world.write(&store, shared(1), 0, &pattern(round, UNIT_SIZE - 8)).unwrap();
    }
    world.machine.rest(Duration::from_secs(2));
    assert!(retired() <= 32 * MIB / BLOCK_SIZE as u64, "{} of 12544 are left", retired());
    world.rest_and_check(&store);
}

#[test]
fn space_is_preallocated_ahead_of_writes_and_discarded_at_rest() {
    const PREALLOCATED: u64 = 64 * MIB;
    for refuses in [false, true] {
        let world = World::new(1, 256 << 20, [0, 192 * MIB, 0]);
        let disk = DiskBelow::over(&world, u64::MAX);
        disk.below().refuses = refuses;
        let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
        let bytes = pattern(1, UNIT_SIZE - 8);
        for index in 0..160 {
            world.write(&store, shared(index), 0, &bytes).unwrap();
            let allocated: u64 = disk.below().preallocated.iter().map(|run| run.end - run.start).sum();
            assert!(allocated <= (index + 1) * MIB + PREALLOCATED, "{allocated} bytes after unit {index}");
        }
        if refuses {
            assert_eq!(disk.below().preallocated.len(), 1, "no retry at once");
            assert!(!store.accounting.lock().has_surplus());
            world.machine.rest(Duration::from_secs(2));
            world.write(&store, shared(0), 0, &bytes).unwrap();
            assert_eq!(disk.below().preallocated.len(), 2);
            world.rest_and_check(&store);
            continue;
        }
        // The first write came before the preallocation.
        for index in 1..160 {
            for extent in store.load(shared(index)).unwrap().unwrap().extents {
                let blocks = extent.device_blocks();
                let bytes = blocks.start * BLOCK_SIZE as u64..blocks.end * BLOCK_SIZE as u64;
                let has = |run: &Range<u64>| run.start <= bytes.start && bytes.end <= run.end;
                assert!(disk.below().preallocated.iter().any(has), "unit {index}: {bytes:?}");
            }
        }
        assert!(store.accounting.lock().has_surplus());
        world.rest_and_check(&store);
        assert!(!store.accounting.lock().has_surplus());
    }
}

#[test]
fn preallocation_stays_within_the_capacity_of_the_views() {
    let world = World::new(1, 256 << 20, [0, 40 * MIB, 0]);
    let disk = DiskBelow::over(&world, u64::MAX);
    let store = world.open_on(Arc::new(disk.clone()), false).unwrap();
    for index in 0..40 {
        world.write(&store, shared(index), 0, &pattern(1, UNIT_SIZE - 8)).unwrap();
    }
    let allocated: u64 = disk.below().preallocated.iter().map(|run| run.end - run.start).sum();
    assert!(allocated <= 40 * MIB, "{allocated}");
    world.rest_and_check(&store);
}

/// Spawns a write; the result appears in the returned cell.
fn writing(
    world: &World,
    store: &Arc<ExtentStore>,
    unit: UnitId,
    bytes: &[u8],
) -> Arc<Mutex<Option<Result<()>>>> {
    let ended = Arc::new(Mutex::new(None));
    let (store, payload, result_cell) = (store.clone(), world.payload(bytes), ended.clone());
    world.machine.runtime().spawn(async move {
        let result = store.write(HomeId(0), unit, Pieces::at(0, payload).unwrap(), true, Generation(1)).await;
        *result_cell.lock() = Some(result);
    });
    ended
}

/// Regression: if the sixteen least recently used clean units were locked, a writer got ENOSPC.
#[test]
fn eviction_skips_or_waits_for_locked_clean_units() {
    let world = World::new(1, 32 << 20, [0, 0, 20 * MIB]);
    let store = world.open();
    let bytes = pattern(1, UNIT_SIZE - 8);
    (0..20).for_each(|index| world.fill(&store, cached(1, index), 0, &bytes));
    let mut used: Vec<_> =
        (0..19).map(|index| store.locks.share(cached(1, index)).now_or_never().unwrap()).collect();
    world.write(&store, cached(2, 0), 0, &bytes).expect("the twentieth is evictable");
    assert_eq!(world.read(&store, cached(1, 19), 0..1, 1).unwrap(), [None]);

    let waiting = writing(&world, &store, cached(2, 1), &bytes);
    world.machine.rest(Duration::from_secs(5));
    assert!(waiting.lock().is_none(), "it waits for an unlock");
    drop(used.remove(0));
    world.machine.rest(Duration::from_secs(5));
    assert!(matches!(*waiting.lock(), Some(Ok(()))));
    drop(used);
    for index in 0..2 {
        world.whole(&store, cached(2, index), &bytes);
    }
    world.rest_and_check(&store);
}

#[test]
fn writers_to_clean_units_do_not_deadlock() {
    let world = World::new(1, 32 << 20, [0, 0, 2 * MIB]);
    let store = world.open();
    let half = pattern(1, UNIT_SIZE / 2);
    let last = pattern(2, UNIT_SIZE - 4096);
    for file in [1, 2] {
        world.fill(&store, cached(file, 0), UNIT_SIZE as u32 / 2, &half);
    }
    world.write(&store, cached(3, 0), 0, &pattern(3, UNIT_SIZE - 8)).unwrap();
    let written = [1, 2].map(|file| writing(&world, &store, cached(file, 0), &last));
    world.machine.rest(Duration::from_secs(60));
    let ended: Vec<_> = written.iter().map(|result| result.lock().take().expect("no deadlock")).collect();
    assert!(ended.iter().any(Result::is_ok));
    assert!(ended.iter().filter_map(|end| end.as_ref().err()).all(|fault| fault.errno == Errno::ENOSPC));
    world.rest_and_check(&store);
}

#[test]
fn a_writer_evicts_the_clean_bytes_of_its_unit() {
    let world = World::new(1, 32 << 20, [0, 0, MIB]);
    let store = world.open();
    world.fill(&store, cached(1, 0), 0, &pattern(1, UNIT_SIZE / 2));
    world.write(&store, cached(2, 0), 0, &pattern(2, UNIT_SIZE / 2)).unwrap();
    let rest = pattern(3, 8192);
    let offset = UNIT_SIZE as u32 / 2;
    let pieces = Pieces::at(offset, world.payload(&rest)).unwrap();
    world.machine.run(store.write(HomeId(0), cached(1, 0), pieces, true, Generation(1))).unwrap();
    assert_eq!(world.read(&store, cached(1, 0), 0..1, 1).unwrap(), [None]);
    assert_eq!(store.space(View::Cache).dirty, MIB / 2 + 8192);
    world.rest_and_check(&store);
}
