//! Generates programs on regions from seeds.

use super::cells::{Cell, Kind, draw_page};
use super::program::{Fault, Interval, Op, Place, RegionProgram, Round};
use crate::rng::Rng;
use crate::world::{Canary, WorldConfig};
use std::time::Duration;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_fabric::simulated::NetworkFaults;

/// Largest number of calls of one program, so that a run takes milliseconds.
const OPS_MAX: u64 = 600;
const UNIT_PAGES: u32 = BLOCKS_PER_UNIT as u32;
/// Seed of a separate generator for home maps: they do not change the other choices of a seed.
const MAPS: u64 = 0x4A95;

/// Generates the program of a seed.
pub fn draw(seed: u64, canary: Option<Canary>) -> RegionProgram {
    let mut rng = Rng::new(seed);
    let spread = *rng.pick(&[2, 4, 11]);
    let nodes = 2 + rng.below(spread) as usize;
    let world = draw_world(&mut rng, (seed, nodes), canary);
    let pages = match rng.below(3) {
        0 => 1 + rng.below(5) as u32,
        _ => 1 + rng.below(700) as u32,
    };
    let cells = draw_cells(&mut rng, pages);
    let alone = *rng.pick(&[0, 0, 30, 100]);
    let per_node = 1 + rng.below(3);
    let mut processes = Vec::new();
    for node in 0..nodes {
        for _ in 0..1 + rng.below(per_node) {
            processes.push(Place { node, alone: rng.percent(alone) });
        }
    }
    let faulty = rng.percent(40);
    let network = draw_network(&mut rng, faulty);
    let maps = draw_maps(&mut Rng::new(seed ^ MAPS), world.devices.len());
    let mut program = RegionProgram { world, network, pages, cells, processes, rounds: Vec::new(), maps };
    let rounds = 1 + rng.below(3);
    let mix = Mix::draw(&mut rng, &program, rounds);
    for round in 0..rounds {
        let intervals = (0..1 + rng.below(4)).map(|_| draw_interval(&mut rng, &program, &mix)).collect();
        let is_last = round + 1 == rounds;
        let latest = *rng.pick(&[2_000, 20_000]);
        let fault = (faulty && (is_last || rng.percent(30)))
            .then(|| (rng.below(latest), draw_fault(&mut rng, &program, is_last)));
        program.rounds.push(Round { intervals, fault });
    }
    program
}

fn draw_world(rng: &mut Rng, (seed, nodes): (u64, usize), canary: Option<Canary>) -> WorldConfig {
    let mut world = WorldConfig::plain(seed, nodes);
    world.devices = (0..nodes).map(|_| rng.percent(85)).collect();
    world.devices[0] |= !world.devices.contains(&true);
    world.inline_max = *rng.pick(&[UNIT_SIZE, UNIT_SIZE, 3000]);
    if rng.percent(30) {
        world.slowness = (0..nodes).map(|_| Duration::from_micros(rng.below(5000))).collect();
    }
    if rng.percent(40) {
        // The smallest evicts at each fetch.
        world.region_memory = *rng.pick(&[1, 8, 40]) * BLOCK_SIZE as u64;
    }
    world.volatile = rng.percent(40);
    world.canary = canary;
    world
}

fn draw_maps(rng: &mut Rng, nodes: usize) -> Vec<(usize, u64)> {
    let count = *rng.pick(&[0, 0, 1, 4]);
    (0..count).map(|_| (rng.below(nodes as u64) as usize, rng.below(5000))).collect()
}

/// Delays, and losses that no node takes for a failure. After a fault the time to detect it is limited, and with it the losses.
fn draw_network(rng: &mut Rng, faulty: bool) -> NetworkFaults {
    if rng.percent(40) {
        return NetworkFaults::NONE;
    }
    let delay_max = Duration::from_micros(*rng.pick(&[100, 1000, 30_000]));
    let (lost, broken) = match faulty {
        true => (*rng.pick(&[0, 0, 2000]), *rng.pick(&[0, 0, 500])),
        false => (*rng.pick(&[0, 5000, 20_000]), *rng.pick(&[0, 0, 5000])),
    };
    NetworkFaults { delay_max, lost, duplicated: *rng.pick(&[0, 10_000, 100_000]), broken }
}

/// Few pages, at the ends of units too, so that the accesses of processes meet.
fn draw_cells(rng: &mut Rng, pages: u32) -> Vec<Cell> {
    let mut hot = vec![0, pages - 1];
    for _ in 0..rng.below(4) {
        hot.push(rng.below(u64::from(pages)) as u32);
    }
    let ends = [1, UNIT_PAGES - 1, UNIT_PAGES, 2 * UNIT_PAGES];
    hot.extend(ends.into_iter().filter(|&page| page < pages && rng.percent(40)));
    hot.sort_unstable();
    hot.dedup();
    let (mut cells, mut locks) = (Vec::new(), 0);
    for page in hot {
        draw_page(rng, page, &mut locks, &mut cells);
    }
    cells
}

/// How often the processes make each kind of call.
struct Mix {
    ops: u64,
    loads: u64,
    stores: u64,
    flushes: u64,
    updates: u64,
    counts: u64,
    adds: u64,
    reads: u64,
    rests: u64,
}

impl Mix {
    fn draw(rng: &mut Rng, program: &RegionProgram, rounds: u64) -> Self {
        let most = OPS_MAX / (program.processes.len() as u64 * rounds * 2);
        let mut some = |weight: u64| if rng.percent(70) { weight } else { 0 };
        Self {
            loads: 3 + some(10),
            stores: 5 + some(10),
            flushes: some(3),
            updates: some(3),
            counts: some(3),
            adds: some(3),
            reads: some(1),
            rests: some(3),
            ops: 1 + rng.below(most.max(2)),
        }
    }
}

fn draw_interval(rng: &mut Rng, program: &RegionProgram, mix: &Mix) -> Interval {
    let (memories, count) = program.memories();
    let writers: Vec<usize> = program.cells.iter().map(|_| rng.below(count as u64) as usize).collect();
    let mut ops = |memory: usize| -> Vec<Op> {
        let count = rng.below(mix.ops + 1);
        (0..count).filter_map(|_| draw_op(rng, program, mix, |cell| writers[cell] == memory)).collect()
    };
    memories.iter().map(|&memory| ops(memory)).collect()
}

fn draw_op(rng: &mut Rng, program: &RegionProgram, mix: &Mix, writes: impl Fn(usize) -> bool) -> Option<Op> {
    let cells = || 0..program.cells.len();
    let of = |is_meant: fn(&Kind) -> bool| {
        cells().filter(move |&cell| is_meant(&program.cells[cell].kind)).collect::<Vec<_>>()
    };
    let any = |rng: &mut Rng, among: Vec<usize>| {
        let turn = rng.below(among.len() as u64) as usize;
        among.get(turn).copied()
    };
    let pause = |rng: &mut Rng| if rng.percent(50) { 0 } else { rng.below(2000) };
    let weights =
        [mix.loads, mix.stores, mix.flushes, mix.updates, mix.counts, mix.adds, mix.reads, mix.rests];
    let mut drawn = rng.below(weights.iter().sum());
    let kind = weights.iter().position(|&weight| {
        let is_it = drawn < weight;
        drawn = drawn.saturating_sub(weight);
        is_it
    })?;
    Some(match kind {
        0 => Op::Load { cell: any(rng, cells().collect())? },
        1 => {
            let own = of(|kind| *kind == Kind::Data).into_iter().filter(|&cell| writes(cell)).collect();
            Op::Store { cell: any(rng, own)? }
        }
        2 => Op::Flush,
        3 => Op::Update,
        4 => Op::Count { cell: any(rng, of(|kind| matches!(kind, Kind::Counter(_))))?, pause: pause(rng) },
        5 => Op::Add { cell: any(rng, of(|kind| *kind == Kind::Sum))?, addend: 1 + rng.below(5) },
        6 => Op::Read { cell: any(rng, cells().collect())? },
        _ => Op::Rest { time: rng.below(3000) },
    })
}

fn draw_fault(rng: &mut Rng, program: &RegionProgram, is_last: bool) -> Fault {
    let process = rng.below(program.processes.len() as u64) as usize;
    match rng.below(if is_last { 5 } else { 3 }) {
        0 => Fault::Detaches { process },
        1 | 2 => Fault::Ends { process, claims: rng.percent(40) },
        _ => Fault::NodeFails { node: program.processes[process].node },
    }
}
