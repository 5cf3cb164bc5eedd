use super::*;
use crate::ledger::kv::MemoryKv;
use crate::ledger::{LedgerOptions, Media};
use below::DiskBelow;
use std::time::Duration;
use tameike_core::Slot;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::{ExtentLocation, Run};
use tameike_io::disk::memory::{Faults, MemoryDisk, MemoryLog};
use tameike_io::os::simulated::Simulation;
use tameike_io::{BlockSums, Frame, Slab};

mod below;
mod full;
mod homes;
mod model;
mod patch;
mod space;

pub(super) const MIB: u64 = 1 << 20;

/// The media of one node, and the simulated machine of the store.
pub(super) struct World {
    pub(super) machine: Simulation,
    pub(super) disk: MemoryDisk,
    logs: [MemoryLog; 2],
    kv: MemoryKv,
    pub(super) faults: Faults,
    pool: Pool,
    scratch: Pool,
    capacity: [u64; 3],
    pub(super) volatile: bool,
    /// A full file system below the disk, in some tests.
    crowded: Option<DiskBelow>,
}

impl World {
    pub(super) fn new(seed: u64, disk_size: usize, capacity: [u64; 3]) -> Self {
        let faults = Faults::default();
        let slab = Slab::new(4).unwrap();
        Self {
            machine: Simulation::shuffled(seed),
            disk: MemoryDisk::new(disk_size, faults.clone()),
            logs: [MemoryLog::new(faults.clone()), MemoryLog::new(faults.clone())],
            kv: MemoryKv::new(faults.clone()),
            faults,
            pool: slab.pool(3),
            scratch: slab.pool(1),
            capacity,
            volatile: false,
            crowded: None,
        }
    }

    pub(super) fn try_open(&self, after_power_loss: bool) -> Result<Arc<ExtentStore>> {
        match &self.crowded {
            Some(crowded) => self.open_on(Arc::new(crowded.clone()), after_power_loss),
            None => self.open_on(Arc::new(self.disk.clone()), after_power_loss),
        }
    }

    fn open_on(&self, disk: Arc<dyn Disk>, after_power_loss: bool) -> Result<Arc<ExtentStore>> {
        let media = Media {
            logs: [Arc::new(self.logs[0].clone()), Arc::new(self.logs[1].clone())],
            kv: Arc::new(self.kv.clone()),
            data: Arc::new(ExtentData::new(disk.clone(), self.scratch.clone())),
        };
        let options = LedgerOptions { checkpoint_bytes: 20_000, volatile: self.volatile, after_power_loss };
        let runtime = self.machine.runtime();
        self.machine.run(async {
            let ledger =
                Ledger::open(runtime.clone(), media, options, |_, body, table| apply(body, table)).await?;
            ExtentStore::open(runtime, ledger, disk, self.scratch.clone(), self.capacity).await
        })
    }

    pub(super) fn open(&self) -> Arc<ExtentStore> {
        self.try_open(false).expect("the media are intact")
    }

    pub(super) fn lose_power(&self) {
        self.disk.lose_power(|| self.machine.draw(2) == 0);
        self.logs.iter().for_each(|log| log.lose_power(|| self.machine.draw(2) == 0));
    }

    fn frame(&self) -> Frame {
        self.pool.try_take().expect("tests use few frames")
    }

    /// Bytes in a frame: at its start, or at an address that is not aligned for direct I/O.
    pub(super) fn payload(&self, bytes: &[u8]) -> Payload {
        let mut frame = self.frame();
        let start = 7 * self.machine.draw(2) as usize;
        frame[start..start + bytes.len()].copy_from_slice(bytes);
        Payload::new(Arc::new(frame), start as u32..(start + bytes.len()) as u32)
    }

    pub(super) fn write(&self, store: &ExtentStore, unit: UnitId, offset: u32, bytes: &[u8]) -> Result<()> {
        let dirty = unit.inode.is_cached();
        let pieces = Pieces::at(offset, self.payload(bytes))?;
        self.machine.run(store.write(HomeId(0), unit, pieces, dirty, Generation(1)))
    }

    pub(super) fn fill(&self, store: &ExtentStore, unit: UnitId, offset: u32, bytes: &[u8]) {
        self.machine
            .run(store.fill(HomeId(0), unit, offset, self.payload(bytes), Generation(1), u64::MAX))
            .unwrap();
    }

    /// The bytes of the range; `None` for bytes that the unit lacks.
    pub(super) fn read(
        &self,
        store: &ExtentStore,
        unit: UnitId,
        range: Range<u32>,
        generation: u64,
    ) -> Result<Vec<Option<u8>>> {
        let mut frame = self.frame();
        frame[..range.end as usize].fill(0xEE);
        let (frame, held) = self.machine.run(store.read(unit, range.clone(), frame, Generation(generation)));
        let Held { ranges: held, sums } = held?;
        let is_whole = [range.start, range.end].iter().all(|place| place % BLOCK_SIZE as u32 == 0);
        let expected = (is_whole && held.contains(&range))
            .then(|| BlockSums::of(&frame[range.start as usize..range.end as usize]));
        assert_eq!(sums, expected, "the checksums of {range:?}");
        let place = self.machine.run(store.extent_location(unit, &range, Generation(generation)))?;
        let located = place.map(|place| (self.at(store, &place.runs), place.digest));
        let read =
            expected.map(|sums| (frame[range.start as usize..range.end as usize].to_vec(), sums.digest()));
        assert!(located == read, "the extent location of {range:?} of {unit:?}");
        let untouched =
            |gap: Range<u32>| frame[gap.start as usize..gap.end as usize].iter().all(|byte| *byte == 0xEE);
        assert!(
            held.gaps(0..range.end).into_iter().all(untouched),
            "a read changes no byte of the frame that the unit lacks"
        );
        let mut bytes = vec![None; range.len()];
        for place in held.iter().flatten() {
            bytes[(place - range.start) as usize] = Some(frame[place as usize]);
        }
        Ok(bytes)
    }

    pub(super) fn at(&self, store: &ExtentStore, runs: &[Run]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for run in runs {
            let (frame, result) = self.machine.run(store.disk.read(run.at, self.frame(), 0..run.length));
            result.unwrap();
            bytes.extend_from_slice(&frame[..run.length as usize]);
        }
        bytes
    }

    pub(super) fn whole(&self, store: &ExtentStore, unit: UnitId, bytes: &[u8]) {
        let expected: Vec<_> = bytes.iter().copied().map(Some).collect();
        assert!(self.read(store, unit, 0..bytes.len() as u32, 1).unwrap() == expected, "{unit:?} is whole");
    }

    /// Waits until all retired blocks are free, and checks that no block is lost.
    pub(super) fn rest_and_check(&self, store: &ExtentStore) {
        self.machine.run(store.sync(true)).unwrap();
        self.machine.rest(Duration::from_secs(60));
        let accounting = store.accounting.lock();
        assert_eq!(accounting.returning(), 0);
        let used: u64 =
            View::ALL.into_iter().map(|view| accounting.space(view).used / BLOCK_SIZE as u64).sum();
        // Reserved space counts as used, but has no blocks.
        let record = |unit: Result<UnitId>| store.load(unit.unwrap()).unwrap().unwrap_or_default();
        let reserved: u64 =
            store.units_of(&HomeSet::All).map(|unit| u64::from(record(unit).reserved.len())).sum();
        assert_eq!(accounting.free() + used - reserved, self.disk.size() / BLOCK_SIZE as u64);
        assert!(store.locks.is_idle());
    }
}

use std::ops::Range;

pub(super) fn shared(index: u64) -> UnitId {
    UnitId { inode: InodeId::in_slot(Slot(5), 77), index }
}

pub(super) fn cached(file: u64, index: u64) -> UnitId {
    UnitId { inode: InodeId::cached(1, file), index }
}

fn pattern(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|place| (place as u8).wrapping_mul(31) ^ (place >> 8) as u8 ^ seed).collect()
}

#[test]
fn a_whole_unit_is_one_extent_and_survives_a_crash() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    let bytes = pattern(3, UNIT_SIZE - 8);
    world.write(&store, shared(4), 0, &bytes).unwrap();
    world.whole(&store, shared(4), &bytes);
    assert_eq!(store.load(shared(4)).unwrap().unwrap().extents.len(), 1);
    assert_eq!(store.space(View::JobShared).used, MIB);
    world.machine.run(store.sync(false)).unwrap();
    drop(store);
    world.machine.kill();
    world.whole(&world.open(), shared(4), &bytes);
}

#[test]
fn small_appends_share_blocks() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    let bytes = pattern(9, 100 * 300);
    for (place, part) in bytes.chunks(300).enumerate() {
        world.write(&store, shared(0), place as u32 * 300, part).unwrap();
    }
    world.whole(&store, shared(0), &bytes);
    assert!(store.load(shared(0)).unwrap().unwrap().extents.len() <= 8, "one per block at most");
    assert_eq!(store.space(View::JobShared).used, 8 * 4096);
    world.rest_and_check(&store);
}

#[test]
fn a_fragmented_unit_is_rewritten_as_one_extent() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 8 * MIB]);
    let store = world.open();
    for unit in [shared(0), cached(1, 0)] {
        for place in (0..200).rev() {
            world.write(&store, unit, place * 5000, &[place as u8; 10]).unwrap();
        }
        let record = store.load(unit).unwrap().unwrap();
        assert!(record.extents.len() <= 65, "{} extents", record.extents.len());
        for place in 0..200 {
            let found = world.read(&store, unit, place * 5000..place * 5000 + 10, 1).unwrap();
            assert_eq!(found, vec![Some(place as u8); 10]);
        }
    }
    assert_eq!(
        store.dirty_units(&HomeSet::All, cached(1, 0).inode, usize::MAX).unwrap()[0].ranges.len(),
        2000,
        "only written bytes are dirty"
    );
    assert!(store.load(shared(0)).unwrap().unwrap().held.count() <= 65);
    assert_eq!(world.read(&store, shared(0), 995_010 - 100..995_010 - 90, 1).unwrap(), vec![Some(0); 10]);
    world.rest_and_check(&store);
}

#[test]
fn clock_and_digest_reveal_a_stale_extent_location() {
    const SIZE: usize = UNIT_SIZE / 2;
    let mut world = World::new(1, 4 << 20, [0, 3 * MIB, 0]);
    world.volatile = true;
    let store = world.open();
    let clock = store.clock.as_ref().expect("its disk is memory").memory().unwrap();
    let old = pattern(1, SIZE);
    world.write(&store, shared(0), 0, &old).unwrap();
    let place = world.machine.run(store.extent_location(shared(0), &(0..SIZE as u32), Generation(0)));
    let ExtentLocation { runs, digest, time } = place.unwrap().unwrap();
    assert_eq!(runs.len(), 1);
    let is_as_of = |time| tameike_io::disk::is_as_of(&clock, runs.iter().copied(), time);
    assert!(is_as_of(time));
    // Writers do not wait for readers of a location; its blocks stay until the new record is durable.
    world.write(&store, shared(0), 0, &pattern(2, SIZE)).unwrap();
    assert!(world.at(&store, &runs) == old && is_as_of(time));
    world.rest_and_check(&store);
    assert!(!is_as_of(time), "freed blocks may be reused");
    let is_used_again = (3..40).any(|round| {
        world.write(&store, shared(u64::from(round % 4)), 0, &pattern(round, SIZE)).unwrap();
        world.rest_and_check(&store);
        let found = world.at(&store, &runs);
        assert_eq!(BlockSums::of(&found).digest() == digest, found == old);
        found != old
    });
    assert!(is_used_again && !is_as_of(time));
    let place = world.machine.run(store.extent_location(shared(0), &(0..SIZE as u32), Generation(0)));
    assert!(place.unwrap().is_some_and(|place| place.time > time));
}

#[test]
fn a_complete_unit_has_an_extent_location_with_all_checksums() {
    let world = World::new(1, 16 << 20, [0, 12 * MIB, 0]);
    let store = world.open();
    let mut content = pattern(1, UNIT_SIZE);
    let (most, rest) = (UNIT_SIZE - 8, UNIT_SIZE - 4096);
    let place = || world.machine.run(store.unit_location(shared(0), Generation(0))).unwrap();
    world.write(&store, shared(0), 0, &content[..most]).unwrap();
    assert_eq!(place(), None, "its last block is incomplete");
    world.write(&store, shared(0), rest as u32, &content[rest..]).unwrap();
    content[20_000..90_000].fill(9);
    world.write(&store, shared(0), 20_000, &[9; 70_000]).unwrap();
    let found = place().unwrap();
    assert!(found.is_whole() && found.runs.len() > 1, "{:?}", found.runs);
    assert!(world.at(&store, &found.runs) == content);
    assert_eq!(found.sums, BlockSums::of(&content).as_bytes());
    for bytes in
        [0..1, 4095..4097, 19_000..21_000, 0..UNIT_SIZE as u32, UNIT_SIZE as u32 - 1..UNIT_SIZE as u32]
    {
        let blocks = bytes.start as usize / 4096 * 4096..(bytes.end as usize).next_multiple_of(4096);
        let runs: Vec<Run> = found.runs_of(&bytes).collect();
        assert!(world.at(&store, &runs) == content[blocks.clone()], "{bytes:?}");
        assert_eq!(found.sums_of(&bytes), BlockSums::of(&content[blocks]).as_bytes());
    }
}

#[test]
fn incomplete_ranges_have_no_extent_location() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 8 * MIB]);
    let store = world.open();
    for (first, seed) in [(0, 1), (8192, 2), (4096, 3), (20_480, 4)] {
        world.write(&store, shared(0), first, &pattern(seed, 4096)).unwrap();
    }
    let place = |range: Range<u32>| {
        world.machine.run(store.extent_location(shared(0), &range, Generation(0))).unwrap().is_some()
    };
    assert!(place(0..12_288) && place(4096..8192) && place(20_480..24_576));
    assert!(!place(0..12_287) && !place(1..4096) && !place(8192..16_384) && !place(12_288..16_384));
    world.fill(&store, cached(1, 0), 0, &pattern(5, 8192));
    let generation = |number| {
        world
            .machine
            .run(store.extent_location(cached(1, 0), &(0..8192), Generation(number)))
            .unwrap()
            .is_some()
    };
    assert!(generation(1) && !generation(2), "clean bytes of an older generation are dropped");
    assert!(!generation(1));
}

#[test]
fn a_read_of_a_damaged_block_fails_and_names_the_unit() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    world.write(&store, shared(0), 0, &pattern(1, 20_000)).unwrap();
    world.write(&store, shared(1), 0, &pattern(2, 20_000)).unwrap();
    let place = store.load(shared(1)).unwrap().unwrap().extents[0].device_blocks().start * BLOCK_SIZE as u64;
    world.disk.damage(place as usize + 4096 + 5);
    let fault = world.read(&store, shared(1), 0..20_000, 0).unwrap_err();
    assert_eq!(fault.errno, Errno::EIO);
    assert!(fault.to_string().contains("unit 1 of inode"), "{fault}");
    assert!(world.read(&store, shared(1), 0..4096, 0).is_ok(), "other blocks are readable");
    let report = world.machine.run(store.scrub()).unwrap();
    assert_eq!((report.units, report.bytes), (2, 40960));
    assert_eq!(report.damaged.iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), [shared(1)]);
}

#[test]
fn truncate_and_delete_free_space() {
    let world = World::new(1, 32 << 20, [0, 32 * MIB, 0]);
    let store = world.open();
    for index in 0..30 {
        world.write(&store, shared(index), 0, &pattern(1, UNIT_SIZE - 8)).unwrap();
    }
    assert_eq!(store.space(View::JobShared).used, 30 * MIB);
    world.machine.run(store.truncate(&HomeSet::All, shared(0).inode, MIB + 5000)).unwrap();
    assert_eq!(store.space(View::JobShared).used, MIB + 8192);
    assert_eq!(world.read(&store, shared(1), 4998..5002, 0).unwrap()[2..], [None, None]);
    world.machine.run(store.truncate(&HomeSet::All, shared(0).inode, 0)).unwrap();
    assert_eq!(store.space(View::JobShared).used, 0);
    world.rest_and_check(&store);
    assert!(!store.accounting.lock().has_surplus(), "all but 16 MiB is discarded");
    assert!(store.load(shared(0)).unwrap().is_none());
}

#[test]
fn a_full_view_refuses_writes_and_other_views_do_not() {
    let world = World::new(1, 16 << 20, [MIB, 2 * MIB, 0]);
    let store = world.open();
    let bytes = pattern(1, UNIT_SIZE - 8);
    world.write(&store, shared(0), 0, &bytes).unwrap();
    world.write(&store, shared(1), 0, &bytes).unwrap();
    let fault = world.write(&store, shared(2), 0, &[1]).unwrap_err();
    assert_eq!(fault.errno, Errno::ENOSPC);
    assert!(fault.to_string().contains("view shared, 2097152 of 2097152 bytes"), "{fault}");
    world.write(&store, shared(1), 0, &bytes).expect("overwriting needs no more");
    let local = UnitId { inode: InodeId::pinned(tameike_core::NodeId(0), 9), index: 0 };
    world.write(&store, local, 0, &bytes).unwrap();
    world.rest_and_check(&store);
}

#[test]
fn a_writer_on_a_full_disk_waits_for_retired_blocks() {
    let world = World::new(1, 2 << 20, [0, 100 * MIB, 0]);
    let store = world.open();
    for round in 0..20 {
        world.write(&store, shared(0), 0, &pattern(round, UNIT_SIZE - 8)).unwrap();
    }
    world.write(&store, shared(1), 0, &pattern(1, UNIT_SIZE - 8)).unwrap();
    let fault = world.write(&store, shared(2), 0, &[1]).unwrap_err();
    assert_eq!(fault.errno, Errno::ENOSPC);
    assert!(fault.to_string().contains("extents file"), "{fault}");
    world.rest_and_check(&store);
}

#[test]
fn clean_units_are_evicted_least_recently_used_first_and_dirty_ones_never() {
    let world = World::new(1, 16 << 20, [0, 0, 3 * MIB]);
    let store = world.open();
    let bytes = pattern(1, UNIT_SIZE - 8);
    for file in 1..=2 {
        world.fill(&store, cached(file, 0), 0, &bytes);
    }
    world.write(&store, cached(3, 0), 0, &bytes).unwrap();
    world.whole(&store, cached(1, 0), &bytes);
    world.write(&store, cached(4, 0), 0, &bytes).unwrap();
    assert_eq!(world.read(&store, cached(2, 0), 0..1, 1).unwrap(), [None], "2 was used before 1");
    world.whole(&store, cached(1, 0), &bytes);
    world.write(&store, cached(5, 0), 0, &bytes).unwrap();
    assert_eq!(world.write(&store, cached(6, 0), 0, &bytes).unwrap_err().errno, Errno::ENOSPC);
    world.fill(&store, cached(7, 0), 0, &bytes);
    assert_eq!(
        world.read(&store, cached(7, 0), 0..1, 1).unwrap(),
        [None],
        "a fill without space is no error"
    );
    for file in 3..=5 {
        world.whole(&store, cached(file, 0), &bytes);
    }
    assert_eq!(store.space(View::Cache).dirty, 3 * (MIB - 8));
}

#[test]
fn a_writer_waits_until_a_flush_frees_space() {
    let world = World::new(1, 16 << 20, [0, 0, MIB]);
    let store = world.open();
    let bytes = pattern(1, UNIT_SIZE - 8);
    world.write(&store, cached(1, 0), 0, &bytes).unwrap();
    let waiting = store.clone();
    let arrived = Arc::new(AtomicBool::new(false));
    let seen = arrived.clone();
    world.machine.runtime().spawn(async move {
        waiting.wait_for_space(View::Cache).await;
        seen.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    world.machine.rest(Duration::from_secs(5));
    assert!(!arrived.load(std::sync::atomic::Ordering::SeqCst));
    let dirty = store.dirty_units(&HomeSet::All, cached(1, 0).inode, usize::MAX).unwrap();
    world.machine.run(store.mark_clean(&dirty[0], Generation(1))).unwrap();
    world.machine.rest(Duration::from_secs(5));
    assert!(arrived.load(std::sync::atomic::Ordering::SeqCst));
    world.write(&store, cached(2, 0), 0, &bytes).unwrap();
}

#[test]
fn bytes_written_during_a_flush_stay_dirty() {
    let world = World::new(1, 16 << 20, [0, 0, 8 * MIB]);
    let store = world.open();
    let unit = cached(1, 0);
    world.write(&store, unit, 0, &pattern(1, 8192)).unwrap();
    world.write(&store, unit, 100_000, &pattern(1, 8192)).unwrap();
    let dirty = store.dirty_units(&HomeSet::All, unit.inode, usize::MAX).unwrap();
    world.write(&store, unit, 4096, &pattern(2, 100)).unwrap();
    world.machine.run(store.mark_clean(&dirty[0], Generation(2))).unwrap();
    let left = store.dirty_units(&HomeSet::All, unit.inode, usize::MAX).unwrap();
    assert!(left[0].ranges.contains(&(4096..4196)));
    assert!(!left[0].ranges.contains(&(100_000..100_001)));
    assert_eq!(store.dirty_inodes(&HomeSet::All, InodeId(0)).unwrap(), [unit.inode]);
    world.machine.run(store.mark_clean(&left[0], Generation(2))).unwrap();
    assert_eq!(store.dirty_inodes(&HomeSet::All, InodeId(0)).unwrap(), []);
    assert_eq!(store.space(View::Cache).dirty, 0);
}

#[test]
fn an_index_that_names_blocks_twice_fails_to_open() {
    let world = World::new(1, 4 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    world.write(&store, shared(0), 0, &[1; 100]).unwrap();
    let record = store.load(shared(0)).unwrap().unwrap();
    let mut other = record.clone();
    for (device, fits) in [(record.extents[0].device, false), (1 << 40, false), (900, true)] {
        other.extents[0].device = device;
        let body = record::log_body(shared(1), Some(&other)).unwrap();
        store.ledger.execute(crate::RecordKind::Extents, &body, |table| apply(&body, table)).unwrap();
        world.machine.run(store.ledger.sync(false)).unwrap();
        match world.try_open(false) {
            Ok(_) => assert!(fits),
            Err(fault) => assert!(!fits && fault.to_string().contains("unit 1 of inode"), "{fault}"),
        }
        // Opening the second store emptied the log of this one.
        world.machine.run(store.ledger.checkpoint()).unwrap();
    }
}

#[test]
fn decoding_a_damaged_index_record_fails_and_names_the_unit() {
    let unit = shared(3);
    let record = record::UnitRecord::default();
    let whole = record.encode().unwrap();
    assert!(record::UnitRecord::decode(unit, &whole).is_ok());
    for damaged in [&[][..], &[1, 2, 3], &whole[1..], &[whole.as_slice(), &[0]].concat()] {
        let fault = record::UnitRecord::decode(unit, damaged).unwrap_err();
        assert!(fault.to_string().contains("unit 3 of inode"), "{fault}");
    }
}
