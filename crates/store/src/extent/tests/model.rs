//! Random operations against a model, with crashes and power losses at any instant.

use super::*;
use crate::extent::record::blocks_of;
use proptest::prelude::*;
use tameike_core::patch::{Difference, PAGE_SIZE, PatchWriter, RECORD_SIZE_MAX};
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Cluster, HomeId, HomeSet, JobId, Layout, NodeId, NodeInfo, UnitsOfHomes};

const SPAN: usize = 24_000;
/// Number of whole pages in it.
const PAGES: usize = SPAN / PAGE_SIZE;

/// Model of a unit: value of each byte, and whether it is dirty.
#[derive(Clone, PartialEq)]
struct Image {
    bytes: Vec<Option<(u8, bool)>>,
    reserved: RangeSet,
    generation: u64,
}

/// The units of a file on the only node of a job.
fn all_units(inode: InodeId) -> UnitsOfHomes {
    let (host, address) = Default::default();
    let info = NodeInfo { id: NodeId(0), host, address, group: 0, device: true };
    let cluster = Cluster::new(JobId::new("job").expect("a name"), vec![info], 1).expect("a cluster");
    cluster.units_of_homes(Layout::Striped, inode, |_| true)
}

impl Image {
    fn new() -> Self {
        Self { bytes: vec![None; SPAN], reserved: RangeSet::new(), generation: 0 }
    }

    /// Number of bytes that are held both here and in the store, or in neither. The state of the store has most, of those whose bytes read the same.
    fn held_as(&self, found: &[Option<u8>]) -> usize {
        self.bytes.iter().zip(found).filter(|(byte, found)| byte.is_some() == found.is_some()).count()
    }

    fn truncate(&mut self, size: usize) {
        self.bytes[size..].fill(None);
        self.reserved.remove(size.div_ceil(4096) as u32..256);
    }

    fn change_space(&mut self, change: SpaceChange, range: Range<usize>) {
        if change != SpaceChange::Allocate {
            self.bytes[range.clone()].fill(None);
            self.reserved.remove(range.start.div_ceil(4096) as u32..(range.end / 4096) as u32);
        }
        if change != SpaceChange::Punch {
            let has_none = |block: &usize| {
                self.bytes[block * 4096..SPAN.min((block + 1) * 4096)].iter().all(Option::is_none)
            };
            let blocks = range.start / 4096..range.end.div_ceil(4096);
            let holes: Vec<_> = blocks.filter(has_none).collect();
            holes.into_iter().for_each(|block| self.reserved.insert(block as u32..block as u32 + 1));
        }
    }

    fn written(&mut self, range: &Range<usize>) {
        self.reserved.remove(blocks_of(&(range.start as u32..range.end as u32)));
    }

    /// Stores whole blocks around the range: bytes that the unit lacks become zeros.
    fn rewrite(&mut self, range: &Range<usize>) {
        self.written(range);
        let blocks = range.start / 4096 * 4096..range.end.div_ceil(4096) * 4096;
        self.bytes[blocks].iter_mut().for_each(|byte| *byte = byte.or(Some((0, false))));
    }

    fn number(&self, place: usize) -> u64 {
        let bytes = &self.bytes[8 * place..8 * place + 8];
        u64::from_le_bytes(std::array::from_fn(|at| bytes[at].map_or(0, |(byte, _)| byte)))
    }

    fn add(&mut self, place: usize, addend: u64) {
        let sum = self.number(place).wrapping_add(addend);
        self.rewrite(&(8 * place..8 * place + 8));
        let bytes = self.bytes[8 * place..].iter_mut().zip(sum.to_le_bytes());
        bytes.for_each(|(byte, new)| *byte = Some((new, false)));
    }

    fn has_clean(&self) -> bool {
        self.bytes.iter().flatten().any(|(_, dirty)| !dirty)
    }

    fn drop_clean(&mut self) {
        self.bytes.iter_mut().for_each(|byte| *byte = byte.filter(|(_, dirty)| *dirty));
    }

    fn set_generation(&mut self, cached: bool, generation: u64) {
        if cached && self.generation < generation {
            self.drop_clean();
            self.generation = generation;
        }
    }

    /// Drops bytes that the store lacks.
    fn keep(&mut self, found: &[Option<u8>]) {
        for (byte, found) in self.bytes.iter_mut().zip(found) {
            *byte = byte.filter(|_| found.is_some());
        }
    }

    /// Resets the generation of an empty unit, which has no record.
    fn forget_if_empty(&mut self) {
        if self.bytes.iter().all(Option::is_none) && self.reserved.is_empty() {
            self.generation = 0;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { unit: usize, pieces: RangeSet, value: u8, generation: u64 },
    Patch { unit: usize, pieces: RangeSet, value: u8 },
    Add { unit: usize, place: usize, addend: u64 },
    Fill { unit: usize, offset: usize, size: usize, value: u8, generation: u64 },
    Read { unit: usize, generation: u64 },
    Truncate { file: usize, size: usize },
    Space { unit: usize, offset: usize, size: usize, change: SpaceChange },
    TakeDirty { file: usize },
    MarkClean { generation: u64 },
    DropClean { file: usize },
    Sync { durable: bool },
    Rest,
    // Other data leaves so many free blocks on the disk.
    Others { free: u64 },
    Crash { power_loss: bool },
}

/// Ranges, many of them whole blocks.
fn place() -> impl Strategy<Value = (usize, usize)> + Clone {
    let block = (0usize..5, 1usize..4).prop_map(|(first, count)| (first * 4096, count * 4096));
    let any = (0usize..SPAN, 1usize..7000);
    prop_oneof![block, any].prop_map(|(offset, size)| (offset, size.min(SPAN - offset)))
}

/// One range in most cases, or several.
fn pieces() -> impl Strategy<Value = RangeSet> {
    let few = prop_oneof![2 => Just(1usize..2), 1 => Just(2..6)];
    few.prop_flat_map(|count| prop::collection::vec(place(), count))
        .prop_map(|places| places.into_iter().map(|(at, size)| at as u32..(at + size) as u32).collect())
}

/// Value written at an offset of a unit: not zero, and not constant.
fn byte_at(offset: u32, value: u8) -> u8 {
    ((u32::from(value) + offset / 512) % 255 + 1) as u8
}

fn change_of_space() -> impl Strategy<Value = SpaceChange> {
    prop_oneof![Just(SpaceChange::Allocate), Just(SpaceChange::Punch), Just(SpaceChange::Zero)]
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0usize..4, place(), 1u8.., 1u64..4);
    prop_oneof![
        8 => (0usize..4, pieces(), 1u8.., 1u64..4)
            .prop_map(|(unit, pieces, value, generation)| Step::Write { unit, pieces, value, generation }),
        6 => (0usize..2, pieces(), 1u8..).prop_map(|(unit, pieces, value)| Step::Patch { unit, pieces, value }),
        3 => (0usize..2, 0..PAGES * PAGE_SIZE / 8, prop_oneof![1u64..3, any::<u64>()])
            .prop_map(|(unit, place, addend)| Step::Add { unit, place, addend }),
        4 => write.prop_map(|(unit, (offset, size), value, generation)| Step::Fill { unit, offset, size, value, generation }),
        1 => (0usize..4, 1u64..4).prop_map(|(unit, generation)| Step::Read { unit, generation }),
        2 => (0usize..2, 0usize..SPAN).prop_map(|(file, size)| Step::Truncate { file, size }),
        4 => (0usize..4, place(), change_of_space())
            .prop_map(|(unit, (offset, size), change)| Step::Space { unit, offset, size, change }),
        2 => (0usize..2).prop_map(|file| Step::TakeDirty { file }),
        2 => (1u64..4).prop_map(|generation| Step::MarkClean { generation }),
        1 => (0usize..2).prop_map(|file| Step::DropClean { file }),
        3 => any::<bool>().prop_map(|durable| Step::Sync { durable }),
        1 => Just(Step::Rest),
        1 => prop_oneof![Just(0), 0u64..20].prop_map(|free| Step::Others { free }),
        1 => any::<bool>().prop_map(|power_loss| Step::Crash { power_loss }),
    ]
}

/// Units 0 and 1 are of a job-shared file, 2 and 3 of a cached one.
fn unit(number: usize) -> UnitId {
    if number < 2 { shared(number as u64) } else { cached(9, number as u64 - 2) }
}

struct Test {
    world: World,
    store: Arc<ExtentStore>,
    /// States of each unit that recovery may restore, oldest first; the last one is the present.
    histories: Vec<Vec<Image>>,
    /// By unit, index of the oldest state that may follow a crash, and a power loss.
    oldest_allowed: [Vec<usize>; 2],
    taken: Vec<(DirtyUnit, Image)>,
}

impl Test {
    fn now(&mut self, number: usize) -> &mut Image {
        self.histories[number].last_mut().expect("never empty")
    }

    /// The unit's bytes in the store, without dirty marks.
    fn read_unit(&self, number: usize) -> Vec<Option<u8>> {
        self.world.faults.none();
        self.world.read(&self.store, unit(number), 0..SPAN as u32, 0).expect("no block is damaged")
    }

    fn dirty(&self, number: usize) -> RangeSet {
        let units = self.store.dirty_units(&HomeSet::All, unit(number).inode, usize::MAX).unwrap();
        units
            .into_iter()
            .find(|dirty| dirty.unit == unit(number))
            .map_or_else(RangeSet::new, |dirty| dirty.ranges)
    }

    fn reserved(&self, number: usize) -> RangeSet {
        self.store.load(unit(number)).unwrap().unwrap_or_default().reserved
    }

    /// Returns true if the store matches `image`; clean bytes of the cache view may be missing.
    fn fits(number: usize, found: &[Option<u8>], dirty: &RangeSet, image: &Image) -> bool {
        let cached = number >= 2;
        let mut marked = vec![false; SPAN];
        dirty.iter().flatten().for_each(|place| marked[place as usize] = true);
        image.bytes.iter().zip(marked).all(|(byte, marked)| byte.is_some_and(|(_, dirty)| dirty) == marked)
            && found.iter().zip(&image.bytes).all(|pair| match pair {
                (None, None) => true,
                (Some(found), Some((expected, _))) => found == expected,
                (Some(found), None) => !cached && *found == 0,
                (None, Some((_, dirty))) => cached && !dirty,
            })
    }

    /// Compares all units with their models, and notes evicted clean bytes.
    fn observe(&mut self) {
        for number in 0..4 {
            let (found, dirty) = (self.read_unit(number), self.dirty(number));
            let image = self.now(number);
            assert!(Self::fits(number, &found, &dirty, image), "unit {number} matches the model");
            let expected = image.reserved.clone();
            assert_eq!(self.reserved(number), expected, "reserved in unit {number}");
            let image = self.now(number);
            // A new state, because a crash before the log is written restores the old one.
            if image.bytes.iter().zip(&found).any(|(byte, found)| byte.is_some() && found.is_none()) {
                self.push(number, |image| image.keep(&found));
            }
        }
        self.check_space();
    }

    fn check_space(&mut self) {
        for (view, units) in [(View::JobShared, [0, 1]), (View::Cache, [2, 3])] {
            let mut blocks = 0;
            let mut dirty = 0;
            for number in units {
                let image = self.now(number);
                blocks += image.reserved.len() as usize;
                blocks += image.bytes.chunks(4096).filter(|block| block.iter().any(Option::is_some)).count();
                dirty += image.bytes.iter().flatten().filter(|(_, dirty)| *dirty).count();
            }
            let space = self.store.space(view);
            assert_eq!((space.used, space.dirty), (blocks as u64 * 4096, dirty as u64));
            assert!(space.used <= space.capacity);
        }
    }

    fn push(&mut self, number: usize, change: impl FnOnce(&mut Image)) {
        let mut image = self.now(number).clone();
        change(&mut image);
        image.forget_if_empty();
        self.histories[number].push(image);
    }

    /// Runs one step on the store and on the model. `Err` means that the machine crashed in it.
    fn run(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Write { unit, pieces, value, generation } => {
                self.write(unit, pieces, value, generation)?;
            }
            Step::Patch { unit, pieces, value } => self.patch(unit, pieces, value)?,
            Step::Add { unit, place, addend } => self.add(unit, place, addend)?,
            Step::Fill { unit, offset, size, value, generation } => {
                self.fill(unit, offset..offset + size, value, generation)?;
            }
            Step::Read { unit: number, generation } => {
                let read = self.world.read(&self.store, unit(number), 0..SPAN as u32, generation);
                self.push(number, |image| {
                    if image.has_clean() {
                        image.set_generation(number >= 2, generation);
                    }
                });
                read?;
            }
            Step::Truncate { file, size } => {
                let result = self.world.machine.run(self.store.truncate(
                    &HomeSet::All,
                    unit(file * 2).inode,
                    size as u64,
                ));
                self.push(file * 2, |image| image.truncate(size));
                self.push(file * 2 + 1, |image| image.truncate(0));
                result?;
            }
            Step::Space { unit, offset, size, change } => {
                self.change_space(unit, offset..offset + size, change)?;
            }
            Step::TakeDirty { file } => {
                let units = self.store.dirty_units(&HomeSet::All, unit(file * 2).inode, usize::MAX)?;
                self.taken =
                    units.into_iter().map(|dirty| (dirty.clone(), self.image_of(dirty.unit))).collect();
            }
            Step::MarkClean { generation } => self.mark_clean(generation)?,
            Step::DropClean { file: 1 } => {
                let result = self.world.machine.run(self.store.drop_clean(unit(2).inode));
                self.push(2, Image::drop_clean);
                self.push(3, Image::drop_clean);
                result?;
            }
            Step::DropClean { .. } => {}
            Step::Sync { durable } => {
                self.world.machine.run(self.store.sync(durable))?;
                let ends = |history: &Vec<Image>| history.len() - 1;
                self.oldest_allowed[0] = self.histories.iter().map(ends).collect();
                if durable {
                    self.oldest_allowed[1] = self.oldest_allowed[0].clone();
                }
            }
            Step::Rest => self.world.machine.rest(Duration::from_secs(2)),
            Step::Others { free } => self.world.crowded.iter().for_each(|disk| disk.below().free = free),
            Step::Crash { .. } => unreachable!("a crash is not a step of the store"),
        }
        Ok(())
    }

    fn change_space(&mut self, number: usize, range: Range<usize>, change: SpaceChange) -> Result<()> {
        let unit = unit(number);
        let bytes = unit.start() + range.start as u64..unit.start() + range.end as u64;
        let result = self.world.machine.run(self.store.change_space(
            &HomeSet::All,
            unit.inode,
            change,
            bytes,
            all_units(unit.inode),
        ));
        if matches!(&result, Err(fault) if fault.errno == Errno::ENOSPC) {
            return Ok(());
        }
        // The store reserves nothing for cached files.
        let change = match change {
            SpaceChange::Zero if number >= 2 => SpaceChange::Punch,
            SpaceChange::Allocate if number >= 2 => return result,
            change => change,
        };
        self.push(number, |image| image.change_space(change, range));
        result
    }

    fn write(&mut self, number: usize, pieces: RangeSet, value: u8, generation: u64) -> Result<()> {
        let cached = number >= 2;
        let bytes: Vec<u8> = pieces.iter().flatten().map(|offset| byte_at(offset, value)).collect();
        let whole = Pieces::new(pieces.clone(), self.world.payload(&bytes))?;
        let write = self.store.write(HomeId(0), unit(number), whole, cached, Generation(generation));
        let result = self.world.machine.run(write);
        if !matches!(&result, Err(fault) if fault.errno == Errno::ENOSPC) {
            let is_forgotten = result.is_ok() && self.is_forgotten(number);
            self.push(number, |image| {
                if is_forgotten {
                    *image = Image::new();
                }
                image.set_generation(cached, generation);
                for range in pieces.iter() {
                    image.written(&(range.start as usize..range.end as usize));
                    range.for_each(|at| image.bytes[at as usize] = Some((byte_at(at, value), cached)));
                }
            });
            result?;
        }
        Ok(())
    }

    fn patch(&mut self, number: usize, mut pieces: RangeSet, value: u8) -> Result<()> {
        pieces.remove((PAGES * PAGE_SIZE) as u32..SPAN as u32);
        let mut after = vec![[0; PAGE_SIZE]; PAGES];
        pieces.iter().flatten().for_each(|at| after.as_flattened_mut()[at as usize] = byte_at(at, value));
        let mut buffer = vec![0; PAGES * RECORD_SIZE_MAX];
        let mut writer = PatchWriter::new(&mut buffer);
        let first = unit(number).index as u32 * 256;
        for (page, after) in (first..).zip(&after) {
            assert!(writer.push(page, &Difference::between(&[0; PAGE_SIZE], after), after));
        }
        let length = writer.len();
        let patch = self.store.patch(HomeId(0), unit(number), self.world.payload(&buffer[..length]));
        let result = self.world.machine.run(patch);
        if !matches!(&result, Err(fault) if fault.errno == Errno::ENOSPC) {
            self.push(number, |image| {
                for range in pieces.iter() {
                    image.rewrite(&(range.start as usize..range.end as usize));
                    range.for_each(|at| image.bytes[at as usize] = Some((byte_at(at, value), false)));
                }
            });
            result?;
        }
        Ok(())
    }

    fn add(&mut self, number: usize, place: usize, addend: u64) -> Result<()> {
        let result =
            self.world.machine.run(self.store.fetch_add(HomeId(0), unit(number), 8 * place as u32, addend));
        if !matches!(&result, Err(fault) if fault.errno == Errno::ENOSPC) {
            let expected = self.now(number).number(place);
            self.push(number, |image| image.add(place, addend));
            assert_eq!(result?, expected, "the number before");
        }
        Ok(())
    }

    /// Returns true if a write evicted its own clean unit, and thereby the generation.
    fn is_forgotten(&mut self, number: usize) -> bool {
        self.world.faults.none();
        let record = self.store.load(unit(number)).unwrap().unwrap_or_default();
        let image = self.now(number);
        number >= 2
            && record.generation.0 < image.generation
            && image.bytes.iter().flatten().all(|(_, dirty)| !dirty)
    }

    fn fill(&mut self, number: usize, range: Range<usize>, value: u8, generation: u64) -> Result<()> {
        let cached = number >= 2;
        let payload = self.world.payload(&vec![value; range.len()]);
        let fill = self.store.fill(
            HomeId(0),
            unit(number),
            range.start as u32,
            payload,
            Generation(generation),
            u64::MAX,
        );
        let result = self.world.machine.run(fill);
        if result.is_err() || self.filled(number, range.clone(), generation) {
            self.push(number, |image| {
                image.set_generation(cached, generation);
                if !cached || image.generation == generation {
                    image.written(&range);
                    image.bytes[range].iter_mut().for_each(|byte| *byte = byte.or(Some((value, false))));
                }
            });
        }
        result
    }

    fn image_of(&mut self, unit: UnitId) -> Image {
        self.now(2 + unit.index as usize).clone()
    }

    /// Returns true if a fill was not skipped for lack of space.
    fn filled(&self, number: usize, range: Range<usize>, generation: u64) -> bool {
        let record = self.store.load(unit(number)).unwrap().unwrap_or_default();
        let is_current = number < 2 || record.generation.0 >= generation;
        is_current && self.read_unit(number)[range].iter().all(Option::is_some)
    }

    /// The store may leave whole blocks dirty that were written again, never less than the model.
    fn mark_clean(&mut self, generation: u64) -> Result<()> {
        for (flushed, image) in std::mem::take(&mut self.taken) {
            let number = 2 + flushed.unit.index as usize;
            let result = self.world.machine.run(self.store.mark_clean(&flushed, Generation(generation)));
            self.world.faults.none();
            let left = self.dirty(number);
            let mut marked = vec![false; SPAN];
            left.iter().flatten().for_each(|place| marked[place as usize] = true);
            self.push(number, |now| {
                for (place, byte) in now.bytes.iter_mut().enumerate() {
                    let flushed_value = image.bytes[place];
                    let is_left = marked[place];
                    if let Some((value, dirty @ true)) = byte
                        && !is_left
                    {
                        assert_eq!(flushed_value, Some((*value, true)), "only flushed bytes are clean");
                        *dirty = false;
                    }
                }
                now.generation = now.generation.max(generation);
            });
            result?;
        }
        Ok(())
    }

    fn crash(&mut self, power_loss: bool) {
        self.world.machine.kill();
        if power_loss {
            self.world.lose_power();
        }
        // Recovery may crash as well.
        if self.world.try_open(power_loss).is_err() {
            self.world.machine.kill();
        }
        self.world.faults.none();
        self.world.machine.kill();
        self.store = self.world.try_open(power_loss).expect("recovery after a crash");
        self.taken.clear();
        for number in 0..4 {
            let (found, dirty) = (self.read_unit(number), self.dirty(number));
            let generation = self.store.load(unit(number)).unwrap().map_or(0, |record| record.generation.0);
            let from = self.oldest_allowed[usize::from(power_loss)][number];
            let allowed = self.histories[number][from..].iter().rev();
            let reserved = self.reserved(number);
            let mut image = allowed
                .filter(|image| Self::fits(number, &found, &dirty, image) && image.reserved == reserved)
                .max_by_key(|image| (image.generation == generation, image.held_as(&found)))
                .unwrap_or_else(|| panic!("unit {number} has a state since the last sync"))
                .clone();
            image.keep(&found);
            image.generation = generation;
            image.forget_if_empty();
            self.histories[number] = vec![image];
        }
        self.oldest_allowed = [vec![0; 4], vec![0; 4]];
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn units_match_the_model_after_crashes(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
        crashes in prop::collection::vec(0u64..60, 0..5),
    ) {
        // Space for 10 of 12 blocks of each view, and little more on the disk.
        let mut world = World::new(seed, 30 * 4096, [0, 10 * 4096, 10 * 4096]);
        // On volatile media, blocks are reused without a durable sync.
        world.volatile = seed & 4 == 0;
        // In half of the cases other data fills the disk.
        world.crowded = (seed & 8 == 0).then(|| DiskBelow::over(&world, 30));
        let volatile = world.volatile;
        let store = world.open();
        let histories = vec![vec![Image::new()]; 4];
        let mut test = Test { world, store, histories, oldest_allowed: [vec![0; 4], vec![0; 4]], taken: Vec::new() };
        let mut crashes = crashes.into_iter();
        for step in steps {
            test.observe();
            if let Some(calls) = crashes.next() {
                test.world.faults.after(calls);
            }
            match step {
                Step::Crash { power_loss } => test.crash(power_loss && !volatile),
                step => {
                    if test.run(step).is_err() {
                        test.crash(seed & 1 == 0 && !volatile);
                    }
                }
            }
            test.world.faults.none();
        }
        test.observe();
        let report = test.world.machine.run(test.store.scrub()).unwrap();
        prop_assert!(report.damaged.is_empty(), "{:?}", report.damaged);
        test.world.rest_and_check(&test.store);
    }
}
