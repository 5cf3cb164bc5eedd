//! Holes, compared with a model in an array.

use super::*;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::unit::{Sought, SpaceChange};

const SPAN: usize = 3 * UNIT_SIZE;

#[derive(Clone, Debug)]
enum Step {
    Write {
        start: usize,
        length: usize,
    },
    Change {
        start: usize,
        length: usize,
        change: SpaceChange,
    },
    Seek {
        start: usize,
        sought: Sought,
    },
    Flush,
    /// The other node opens the file and reads all of it.
    ReadElsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    let length = || prop_oneof![4 => 1..9000usize, 1 => Just(UNIT_SIZE)];
    let change = prop_oneof![Just(SpaceChange::Allocate), Just(SpaceChange::Punch), Just(SpaceChange::Zero)];
    let sought = prop_oneof![Just(Sought::Data), Just(Sought::Hole)];
    prop_oneof![
        4 => (place(), length()).prop_map(|(start, length)| Step::Write { start, length }),
        3 => (place(), length(), change).prop_map(|(start, length, change)| Step::Change { start, length, change }),
        4 => (place(), sought).prop_map(|(start, sought)| Step::Seek { start, sought }),
        1 => Just(Step::Flush),
        1 => Just(Step::ReadElsewhere),
    ]
}

/// Value of each byte, `None` in a hole.
type Model = Vec<Option<u8>>;

fn expected(model: &Model, sought: Sought, start: usize) -> Option<u64> {
    let found = (start..model.len()).find(|&place| model[place].is_some() == (sought == Sought::Data));
    found.map(|place| place as u64)
}

fn content(model: &Model) -> Vec<u8> {
    model.iter().map(|byte| byte.unwrap_or(0)).collect()
}

fn check_content(bench: &Bench, node: usize, model: &Model) {
    let file = bench.open(node);
    let whole: Vec<u8> = (0..model.len().div_ceil(UNIT_SIZE))
        .flat_map(|unit| bench.read(node, &file, (unit * UNIT_SIZE) as u64, UNIT_SIZE as u32))
        .collect();
    assert!(whole == content(model), "node {node} reads other bytes than the model");
    bench.engines[node].close(&file);
}

impl Bench {
    pub fn change_space(&self, file: &Arc<FileData>, change: SpaceChange, bytes: Range<u64>, grows: bool) {
        let space = self.engines[0].space();
        let change_homes = space.change_at_homes(file, change, bytes.clone(), grows);
        self.simulation.run(space.change(file, change, bytes, change_homes)).expect("the change");
    }

    fn seek(&self, file: &Arc<FileData>, sought: Sought, start: u64) -> Option<u64> {
        let found = self.engines[0].space().seek(file, sought, start, file.size());
        self.simulation.run(found).expect("the search")
    }
}

fn run(bench: &Bench, file: &Arc<FileData>, model: &mut Model, number: usize, step: Step) {
    match step {
        Step::Write { start, length } => {
            let (end, value) = ((start + length).min(SPAN), number as u8 | 1);
            model.resize(model.len().max(end), None);
            model[start..end].fill(Some(value));
            bench.write(0, file, start as u64, vec![value; end - start]);
        }
        Step::Change { start, length, change } => {
            let end = (start + length).min(SPAN);
            let grows = change != SpaceChange::Punch && number.is_multiple_of(2);
            if grows {
                model.resize(model.len().max(end), None);
            }
            if change != SpaceChange::Allocate {
                let size = model.len();
                model[start.min(size)..end.min(size)].fill(None);
            }
            bench.change_space(file, change, start as u64..end as u64, grows);
            assert_eq!(file.size(), model.len() as u64);
        }
        Step::Seek { start, sought } => {
            let found = bench.seek(file, sought, start as u64).filter(|&at| at < model.len() as u64);
            assert_eq!(found, expected(model, sought, start), "{sought:?} from {start}");
        }
        Step::Flush => bench.flush(0, file).expect("the flush"),
        Step::ReadElsewhere => {
            bench.flush(0, file).expect("the flush");
            check_content(bench, 1, model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn data_and_holes_match_the_model(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..40)) {
        let bench = Bench::new(seed, 6);
        let file = bench.open(0);
        // Past the size limit of inline content, which counts as data throughout.
        let mut model = vec![None; UNIT_SIZE + 7000];
        model[UNIT_SIZE + 5000..].fill(Some(1));
        bench.write(0, &file, UNIT_SIZE as u64 + 5000, vec![1; 2000]);
        bench.flush(0, &file).expect("the flush");
        for (number, step) in steps.into_iter().enumerate() {
            run(&bench, &file, &mut model, number, step);
        }
        bench.flush(0, &file).expect("the flush");
        check_content(&bench, 0, &model);
        check_content(&bench, 1, &model);
    }
}

/// Unsent bytes count as blocks of the file; a write past the end makes a hole.
#[test]
fn a_write_past_the_end_makes_a_hole() {
    let bench = Bench::new(3, 6);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    assert!(!file.has_holes());
    assert_eq!(file.unsent_blocks(), 3 * 8);
    bench.write(0, &file, 10_001, vec![1]);
    assert!(file.has_holes());
    bench.flush(0, &file).expect("the flush");
    assert_eq!((file.has_holes(), file.unsent_blocks()), (false, 0), "the homes have the bytes");
    assert!(bench.homes.lock().sparse);
}

/// The part of the test double that tracks written ranges.
pub(super) fn serve(homes: &mut Homes, node: NodeId, request: UnitRequest) -> UnitReply {
    let (unit_size, cluster) = (UNIT_SIZE as u64, fixtures::cluster(2));
    let units = |start: u64, layout, inode| {
        let map = cluster.map();
        let own = cluster.units_of_homes(layout, inode, |home| map.primary(home) == node);
        own.from(start / unit_size).map(|(index, _)| index).take_while(|index| *index < 8).collect::<Vec<_>>()
    };
    match request {
        UnitRequest::Space { inode, change, start, end, layout } => {
            for index in units(start, layout, inode).into_iter().filter(|_| change != SpaceChange::Allocate) {
                let first = index * unit_size;
                let within = |place: u64| (place.clamp(first, first + unit_size) - first) as u32;
                let range = within(start)..within(end);
                homes.held.entry(index).or_default().remove(range.clone());
                if let Some(bytes) = homes.units.get_mut(&UnitId { inode, index }) {
                    bytes[range.start as usize..range.end as usize].fill(0);
                }
            }
            UnitReply::Done
        }
        UnitRequest::Seek { inode, sought, start, layout } => {
            let own = units(start, layout, inode);
            for (number, &index) in own.iter().enumerate() {
                let first = index * unit_size;
                let from = (start.max(first) - first) as u32;
                let held = homes.held.get(&index).cloned().unwrap_or_default();
                let gaps: RangeSet = held.gaps(0..UNIT_SIZE as u32).into_iter().collect();
                let wanted = if sought == Sought::Data { held } else { gaps };
                if let Some(range) = wanted.iter().find(|range| range.end > from) {
                    return UnitReply::Found { at: first + u64::from(range.start.max(from)), found: true };
                }
                // Returns a resume position, as a real home does after many units.
                if let Some(next) = own.get(number + 1) {
                    return UnitReply::Found { at: next * unit_size, found: false };
                }
            }
            UnitReply::Found { at: u64::MAX, found: false }
        }
        _ => UnitReply::Done,
    }
}
