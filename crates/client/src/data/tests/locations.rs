//! Direct reads of units from their extent locations.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::Run;
use tameike_core::wire::unit::UnitLocation;
use tameike_io::BlockSums;
use tameike_io::disk::HostDevice;
use tameike_io::disk::{DiskMemory, FreeClock};

const UNIT: u64 = UNIT_SIZE as u64;
const WHOLE: u32 = UNIT_SIZE as u32;

/// The device of all homes. It has space for a few units, whose blocks are reused.
pub struct Device {
    file: File,
    clock: FreeClock,
    pub device: Arc<HostDevice>,
    capacity_units: u64,
    stored: u64,
    /// Requested units, by message.
    pub requested: Vec<Vec<u64>>,
}

impl Default for Device {
    fn default() -> Self {
        let file = tempfile::tempfile_in("/dev/shm").expect("memory");
        let clock = FreeClock::create(1 << 30).expect("memory");
        let bytes = file.try_clone().expect("a descriptor").into();
        let memory = DiskMemory { bytes, clock: clock.memory().expect("a descriptor") };
        let device = Arc::new(HostDevice::new(memory));
        Self { file, clock, device, capacity_units: 3, stored: 0, requested: Vec::new() }
    }
}

impl Device {
    /// Writes the bytes of a unit to the device, in two runs.
    fn put(&mut self, bytes: &[u8]) -> UnitLocation {
        let (first, second) = bytes.split_at(9 * BLOCK_SIZE);
        let place = self.stored % self.capacity_units * UNIT;
        self.stored += 1;
        self.clock.freed(&(place..place + UNIT));
        let runs = [(second, place), (first, place + second.len() as u64)].map(|(part, at)| {
            self.file.write_all_at(part, at).expect("memory");
            Run { at, length: part.len() as u32 }
        });
        let [second, first] = runs;
        let sums = BlockSums::of(bytes).as_bytes().to_vec();
        UnitLocation { runs: vec![first, second], sums, time: self.clock.now() }
    }
}

/// Returns the extent locations of the units that have been written.
pub fn serve(homes: &mut Homes, units: Vec<u64>) -> UnitReply {
    let all = units.iter().map(|&index| homes.units.get(&UnitId { inode: INODE, index }));
    let locations = all.map(|bytes| Some(homes.device.put(bytes?))).collect();
    homes.device.requested.push(units);
    UnitReply::Locations(locations)
}

impl Bench {
    fn locate(&self, file: &Arc<FileData>, offset: u64, length: u32) -> Option<Located> {
        self.simulation.run(self.engines[0].locate(file, offset, length))
    }

    /// The bytes at a location; `None` if it is stale.
    fn bytes_at(&self, located: &Located) -> Option<Vec<u8>> {
        let frame = self.spare.try_take().expect("the test has a spare frame");
        let Located { device, location, range } = located;
        device.read_unit(location, range, frame).map(|payload| payload.to_vec())
    }

    fn take_requests(&self) -> Vec<Vec<u64>> {
        std::mem::take(&mut self.homes.lock().device.requested)
    }
}

/// Node 1 writes `units` units, each filled with its number plus one. Returns the file as node 0 then opens it.
pub fn written(bench: &Bench, units: u64) -> Arc<FileData> {
    let writer = bench.open(1);
    for index in 0..units {
        bench.write(1, &writer, index * UNIT, vec![index as u8 + 1; UNIT_SIZE]);
    }
    bench.flush(1, &writer).expect("a flush");
    bench.open(0)
}

#[test]
fn a_sequential_reader_gets_many_locations_in_few_requests() {
    const UNITS: u64 = 80;
    let bench = Bench::new(1, 100);
    bench.homes.lock().device.capacity_units = UNITS;
    let file = written(&bench, UNITS);
    for index in 0..UNITS {
        let located = bench.locate(&file, index * UNIT, WHOLE).expect("the home has the unit");
        assert_eq!(bench.bytes_at(&located), Some(vec![index as u8 + 1; UNIT_SIZE]));
        bench.simulation.rest(std::time::Duration::from_millis(5));
    }
    let requests = bench.take_requests();
    let mut all = requests.concat();
    all.sort_unstable();
    assert_eq!(all, (0..UNITS).collect::<Vec<_>>(), "each location is requested once");
    assert!(requests.len() <= 12, "{requests:?}");
    // Random reads request each location separately.
    bench.engines[0].close(&file);
    let file = bench.open(0);
    for index in [70, 3, 40, 3] {
        bench.locate(&file, index * UNIT + 5000, 40_000).expect("the home has the unit");
    }
    assert_eq!(bench.take_requests(), [[70], [3], [40]]);
}

#[test]
fn locations_are_cached_until_the_file_may_have_changed() {
    let bench = Bench::new(2, 100);
    bench.homes.lock().device.capacity_units = 20;
    let file = written(&bench, 4);
    let locate = |offset| bench.locate(&file, offset, 50_000);
    let known = locate(UNIT + 100).expect("the home has the unit");
    assert_eq!(bench.bytes_at(&known), Some(vec![2; 50_000]));
    bench.simulation.rest(std::time::Duration::from_millis(5));
    bench.take_requests();
    assert!(locate(UNIT + 50_100).is_some());
    assert!(bench.take_requests().is_empty(), "the location is cached");
    // After a write of this node, the written unit is in memory, and the other locations are requested again.
    bench.write(0, &file, 2 * UNIT, vec![9; 10]);
    assert!(locate(2 * UNIT).is_none() && locate(UNIT).is_some());
    assert!(!bench.take_requests().is_empty());
    // A write of another node, which this node detects at the next open.
    let writer = bench.open(1);
    bench.write(1, &writer, UNIT, vec![8; UNIT_SIZE]);
    bench.flush(1, &writer).expect("a flush");
    bench.open(0);
    let newer = locate(UNIT).expect("the home has the unit");
    assert_eq!(bench.bytes_at(&newer), Some(vec![8; 50_000]));
    // A truncation.
    bench.truncate(0, &file, 3 * UNIT);
    assert!(locate(UNIT).is_some() && locate(3 * UNIT).is_none());
    assert_eq!(bench.bytes_at(&known), Some(vec![2; 50_000]), "the blocks were relocated, not overwritten");
}

#[test]
fn only_whole_units_at_their_homes_have_a_location() {
    let bench = Bench::new(3, 100);
    let file = written(&bench, 1);
    bench.write(0, &file, UNIT, vec![7; 100_000]);
    bench.flush(0, &file).expect("a flush");
    assert!(bench.locate(&file, UNIT, 50_000).is_none(), "the file ends within the unit");
    assert!(bench.locate(&file, UNIT - 25_000, 50_000).is_none(), "two units");
    assert!(bench.locate(&file, 0, 50_000).is_some());
    let other = written(&Bench::new(3, 100), 0);
    assert!(bench.locate(&other, 0, 50_000).is_none(), "the content is in the inode record");
    bench.homes.lock().units.clear();
    let file = written(&bench, 1);
    bench.homes.lock().units.clear();
    assert!(bench.locate(&file, 0, 50_000).is_none(), "the home has no extent of the unit");
}

/// If the home has reused the blocks of a location, the read goes to the home, and locations are requested again.
#[test]
fn units_with_stale_locations_are_read_from_the_home() {
    const UNITS: u64 = 30;
    let bench = Bench::new(4, 4);
    let file = written(&bench, UNITS);
    let mut stored = 0;
    for round in 0..3 {
        for index in 0..UNITS {
            let (start, length) = (index * UNIT + round * 80_000, 70_000);
            assert_eq!(bench.read(0, &file, start, length), vec![index as u8 + 1; length as usize]);
        }
        let before = std::mem::replace(&mut stored, bench.homes.lock().device.stored);
        assert!(stored > before, "round {round}");
    }
}

/// All blocks that end in the CRC-32C of their preceding bytes have the same CRC-32C.
#[test]
fn blocks_that_contain_their_checksum_are_not_confused() {
    const UNITS: u64 = 12;
    let block = |number: u64, within: usize| {
        let mut block = vec![(number as u8).wrapping_add(within as u8); BLOCK_SIZE];
        let sum = BlockSums::of(&block[..BLOCK_SIZE - 4]);
        block[BLOCK_SIZE - 4..].copy_from_slice(sum.as_bytes());
        block
    };
    let unit = |number: u64| -> Vec<u8> {
        (0..UNIT_SIZE / BLOCK_SIZE).flat_map(|within| block(number, within)).collect()
    };
    assert!(BlockSums::of(&unit(1)).as_bytes() == BlockSums::of(&unit(2)).as_bytes());
    let bench = Bench::new(5, 100);
    let writer = bench.open(1);
    for index in 0..UNITS {
        bench.write(1, &writer, index * UNIT, unit(index));
    }
    bench.flush(1, &writer).expect("a flush");
    let file = bench.open(0);
    for _ in 0..3 {
        for index in 0..UNITS {
            assert!(bench.read(0, &file, index * UNIT, WHOLE) == unit(index), "unit {index}");
            if let Some(located) = bench.locate(&file, index * UNIT, WHOLE) {
                assert!(bench.bytes_at(&located).is_none_or(|bytes| bytes == unit(index)), "unit {index}");
            }
        }
    }
}

#[test]
fn a_small_file_costs_one_location_request_per_home() {
    const UNITS: u64 = 12;
    let bench = Bench::new(6, 100);
    bench.homes.lock().device.capacity_units = UNITS;
    let file = written(&bench, UNITS);
    for index in 0..UNITS {
        bench.locate(&file, index * UNIT, WHOLE).expect("the home has the unit");
        bench.simulation.rest(std::time::Duration::from_millis(5));
    }
    let requests = bench.take_requests();
    assert!(requests.len() <= 3, "{requests:?}");
}
