//! Generates programs from seeds. Each seed omits some kinds of calls and faults, so that the others occur in combinations that a
//! uniform mix would rarely produce.

mod filling;
mod locking;
mod racing;
mod sharing;

use super::{Action, Program, Step, Trouble};
use crate::chance::Chance;
use crate::op::{DIRS, Flags, Op, SLOTS};
use crate::tree::TreeFaults;
use crate::world::{AMPLE_CAPACITY, CHECKPOINT_BYTES, Canary, DiskFaults, WorldConfig};
use filling::draw_filling;
use locking::draw_locking;
use racing::draw_race;
use sharing::draw_sharing;
use std::time::Duration;
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::meta::RenameMode;
use tameike_fabric::simulated::Weather;

const FILES: [&str; 3] = ["x", "y", "z"];
const LENGTHS: [u32; 7] = [1, 30, 100, 3000, 5000, 5000, 70_000];
/// Write sizes where capacity is small, in bytes.
const LARGE_LENGTHS: [u32; 9] = [1, 30, 100, 3000, 5000, 70_000, 70_000, 400_000, 400_000];
const UNIT: u64 = UNIT_SIZE as u64;
/// Seeds of separate generators for locks, shared reads and pools.
const LOCKS: u64 = 0x10C4;
const SHARED_READS: u64 = 0x5AED;
const POOLS: u64 = 0xF4A3;

/// The mix of calls and faults of a seed.
struct Taste {
    nodes: usize,
    views: Vec<View>,
    /// Percentage of steps with a fault.
    trouble: u64,
    troubles: Vec<Kind>,
    /// Weights of kinds of calls.
    weights: Vec<(u64, Call)>,
    /// Percentage of offsets beyond the first unit.
    far: u64,
    /// Maximum number of concurrent calls.
    together: u64,
    files: u64,
    /// Percentage of steps that begin concurrent appends.
    races: u64,
    /// Write sizes, in bytes.
    lengths: &'static [u32],
    /// The capacity exceeds everything that a program can write.
    is_ample: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    Cut,
    Weather,
    Tree,
    Disk,
    Slow,
    Rot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Open,
    Create,
    Read,
    Write,
    Fsync,
    Close,
    Truncate,
    Stat,
    List,
    Directory,
    Unlink,
    Rename,
    Link,
    Symlink,
    Attribute,
    SyncDir,
}

const CALLS: [(u64, Call); 16] = [
    (10, Call::Open),
    (8, Call::Create),
    (16, Call::Read),
    (20, Call::Write),
    (5, Call::Fsync),
    (8, Call::Close),
    (4, Call::Truncate),
    (6, Call::Stat),
    (4, Call::List),
    (3, Call::Directory),
    (5, Call::Unlink),
    (6, Call::Rename),
    (2, Call::Link),
    (2, Call::Symlink),
    (3, Call::Attribute),
    (1, Call::SyncDir),
];

/// Generates the program of a seed.
pub fn draw(seed: u64, canary: Option<Canary>) -> Program {
    let mut chance = Chance::new(seed);
    let mut world = draw_world(&mut chance, seed, canary);
    let mut taste = draw_taste(&mut chance, &world);
    let mut steps = Vec::new();
    let mut tag = 0;
    // Separate generators: a change to one of them does not change the other calls of a seed.
    let mut locking = Chance::new(seed ^ LOCKS);
    let locks = *locking.of(&[0, 0, 10, 25]);
    let mut sharing = Chance::new(seed ^ SHARED_READS);
    let shares = sharing::suit(&mut sharing, &mut world);
    let mut pools = Chance::new(seed ^ POOLS);
    world.service_frames = *pools.of(&[u32::MAX, u32::MAX, 2, 1]);
    let fills = filling::suit(&mut pools, &taste);
    let phases = 1 + chance.below(3);
    for _ in 0..phases {
        if !taste.troubles.is_empty() && chance.percent(70) {
            taste.trouble = 4 + chance.below(12);
        } else {
            taste.trouble = 0;
        }
        for _ in 0..10 + chance.below(25) {
            if chance.percent(taste.races) {
                steps.extend(draw_race(&mut chance, &taste, &mut tag));
            } else {
                steps.push(draw_step(&mut chance, &taste, &mut tag));
            }
            if locking.percent(locks) {
                steps.extend(draw_locking(&mut locking, &taste, &mut tag));
            }
            if pools.percent(fills) {
                steps.extend(draw_filling(&mut pools, &taste, &mut tag));
            }
            if sharing.percent(shares) {
                steps.extend(draw_sharing(&mut sharing, &taste, &mut tag));
            }
        }
        steps.push(Step::Check);
    }
    let dies = chance.percent(30);
    Program { world, steps, dies }
}

fn draw_world(chance: &mut Chance, seed: u64, canary: Option<Canary>) -> WorldConfig {
    let count = *chance.of(&[1, 2, 2, 3, 3, 3, 4]);
    let mut devices: Vec<bool> = (0..count).map(|_| chance.percent(85)).collect();
    devices[0] |= !devices.iter().any(|&has| has);
    let slow = chance.percent(40);
    let skewed = chance.percent(40);
    let mut times = |is_some: bool, limit: u64| -> Vec<Duration> {
        devices.iter().map(|_| Duration::from_micros(if is_some { chance.below(limit) } else { 0 })).collect()
    };
    let slowness = times(slow, 20_000);
    let skew = times(skewed, 2_000_000);
    WorldConfig {
        seed,
        inline_max: *chance.of(&[UNIT_SIZE, UNIT_SIZE, 3000]),
        capacity: if chance.percent(15) { *chance.of(&[96, 256, 1024, 1024]) << 10 } else { AMPLE_CAPACITY },
        view_frames: u32::MAX,
        service_frames: u32::MAX,
        checkpoint_bytes: CHECKPOINT_BYTES,
        slowness,
        skew,
        volatile: chance.percent(40),
        devices,
        canary,
    }
}

fn draw_taste(chance: &mut Chance, world: &WorldConfig) -> Taste {
    let views = match chance.below(4) {
        0 => vec![View::JobShared],
        1 => vec![View::Cache],
        _ => vec![View::JobShared, View::Cache],
    };
    let kinds = [Kind::Kill, Kind::Cut, Kind::Weather, Kind::Tree, Kind::Disk, Kind::Slow, Kind::Rot];
    let troubles = kinds.into_iter().filter(|_| chance.percent(30)).collect();
    let weights = CALLS
        .into_iter()
        .map(|(weight, call)| {
            let needed = matches!(call, Call::Open | Call::Create | Call::Write | Call::Read | Call::Close);
            let factor = if needed { 1 + chance.below(2) } else { chance.below(3) };
            (weight * factor, call)
        })
        .collect();
    Taste {
        nodes: world.devices.len(),
        views,
        trouble: 0,
        troubles,
        weights,
        far: *chance.of(&[0, 0, 10, 40]),
        together: 1 + chance.below(4),
        files: 1 + chance.below(3),
        races: *chance.of(&[0, 0, 4, 12]),
        lengths: if world.capacity < AMPLE_CAPACITY { &LARGE_LENGTHS } else { &LENGTHS },
        is_ample: world.capacity >= AMPLE_CAPACITY,
    }
}

fn draw_slot(chance: &mut Chance) -> u8 {
    chance.below(u64::from(SLOTS)) as u8
}

fn draw_some_trouble(chance: &mut Chance, taste: &Taste) -> Option<Action> {
    if !chance.percent(taste.trouble) {
        return None;
    }
    let latest = *chance.of(&[1, 500, 5000]);
    let after = chance.below(latest);
    Some(Action::Trouble(after, draw_trouble(chance, taste)))
}

fn draw_step(chance: &mut Chance, taste: &Taste, tag: &mut u64) -> Step {
    if chance.percent(10) {
        return Step::Rest(*chance.of(&[1, 20, 120, 400, 3000]));
    }
    if chance.percent(2) {
        return Step::Drain;
    }
    let mut actions = Vec::new();
    let mut namers = Vec::new();
    for _ in 0..1 + chance.below(taste.together) {
        let (node, view) = (chance.below(taste.nodes as u64) as usize, *chance.of(&taste.views));
        let op = draw_op(chance, taste, tag);
        // One change of a view's names or inodes at a time, else its outcome cannot be predicted. Without faults, files may be opened
        // concurrently with it.
        let is_beside = op.only_opens() && taste.troubles.is_empty();
        if (op.changes_names() || op.changes_inode()) && !is_beside {
            if namers.contains(&view) {
                continue;
            }
            namers.push(view);
        }
        actions.push(Action::Call { node, view, op });
    }
    actions.extend(draw_some_trouble(chance, taste));
    Step::Together(actions)
}

fn draw_trouble(chance: &mut Chance, taste: &Taste) -> Trouble {
    let node = chance.below(taste.nodes as u64) as usize;
    match chance.of(&taste.troubles) {
        Kind::Kill => {
            // After power loss, bit rot cannot be distinguished from torn writes.
            let power = chance.percent(40) && !taste.troubles.contains(&Kind::Rot);
            Trouble::Kill { node, power }
        }
        Kind::Cut if chance.percent(35) => Trouble::Mend,
        Kind::Cut => {
            let to = chance.below(taste.nodes as u64) as usize;
            Trouble::Cut { from: node, to, both: chance.percent(50) }
        }
        Kind::Weather => Trouble::Weather(Weather {
            delay_max: Duration::from_micros(*chance.of(&[100, 1000, 30_000])),
            lost: *chance.of(&[0, 0, 5000, 20_000]) as u32,
            doubled: *chance.of(&[0, 10_000, 100_000]) as u32,
            broken: *chance.of(&[0, 0, 5000]) as u32,
        }),
        Kind::Tree => {
            let mut some = |limit: u64| if chance.percent(40) { chance.below(limit) as u32 } else { 0 };
            let (reads, writes, syncs, full) = (some(60), some(200), some(600), some(200));
            Trouble::Tree(TreeFaults { reads, writes, syncs, full, read_only: chance.percent(10) })
        }
        Kind::Disk => {
            let mut some = |limit: u64| if chance.percent(40) { chance.below(limit) as u32 } else { 0 };
            Trouble::Disk(node, DiskFaults { reads: some(100), writes: some(100), syncs: some(60) })
        }
        Kind::Slow => Trouble::Slow(node, *chance.of(&[0, 30, 300])),
        Kind::Rot => Trouble::Rot(node),
    }
}

fn draw_path(chance: &mut Chance, taste: &Taste) -> String {
    let dir = *chance.of(&["", "a", "a", "b", "a/c", "d", "a/d"]);
    let name = FILES[chance.below(taste.files) as usize];
    crate::model::path::join(dir, name)
}

fn draw_dir(chance: &mut Chance) -> String {
    (*chance.of(&["", "a", "b", "a/c", "d", "a/d", "b/d"])).to_owned()
}

fn draw_new_dir(chance: &mut Chance) -> String {
    (*chance.of(&["d", "a/d", "b/d", "d/e"])).to_owned()
}

fn draw_offset(chance: &mut Chance, taste: &Taste) -> u64 {
    let near = chance.below(80);
    if chance.percent(taste.far) {
        return (1 + chance.below(2)) * UNIT - 40 + near;
    }
    *chance.of(&[0, 0, near, near * 13, 4096 - 40 + near, 20_000 + near * 700])
}

fn draw_op(chance: &mut Chance, taste: &Taste, tag: &mut u64) -> Op {
    let total: u64 = taste.weights.iter().map(|(weight, _)| weight).sum();
    let mut left = chance.below(total);
    let mut call = Call::Open;
    for (weight, kind) in &taste.weights {
        if left < *weight {
            call = *kind;
            break;
        }
        left -= weight;
    }
    let slot = draw_slot(chance);
    match call {
        Call::Open => {
            let write = chance.percent(60);
            let truncate = write && chance.percent(15);
            Op::Open {
                slot,
                path: draw_path(chance, taste),
                flags: Flags { write, truncate, ..Flags::default() },
            }
        }
        Call::Create => {
            let (append, exclusive) = (chance.percent(15), chance.percent(20));
            let truncate = chance.percent(15);
            let flags = Flags { write: true, append, truncate, create: true, exclusive };
            Op::Open { slot, path: draw_path(chance, taste), flags }
        }
        Call::Read => {
            let length = *chance.of(&[1, 100, 5000, 5000, 70_000, UNIT as u32]);
            Op::Read { slot, offset: draw_offset(chance, taste), length }
        }
        Call::Write => {
            *tag += 1;
            let length = *chance.of(taste.lengths);
            Op::Write { slot, offset: draw_offset(chance, taste), length, tag: *tag }
        }
        Call::Fsync => Op::Fsync { slot },
        Call::Close => Op::Close { slot },
        Call::Truncate => Op::Truncate { path: draw_path(chance, taste), size: draw_offset(chance, taste) },
        Call::Stat => {
            Op::Stat { path: if chance.percent(80) { draw_path(chance, taste) } else { draw_dir(chance) } }
        }
        Call::List => Op::List { path: draw_dir(chance) },
        Call::Directory if chance.percent(60) => Op::Mkdir { path: draw_new_dir(chance) },
        Call::Directory => Op::Rmdir { path: draw_new_dir(chance) },
        Call::Unlink => Op::Unlink { path: draw_path(chance, taste) },
        Call::Rename => draw_rename(chance, taste),
        Call::Link => Op::Link { from: draw_path(chance, taste), to: draw_path(chance, taste) },
        Call::Symlink if chance.percent(50) => Op::Readlink { path: draw_path(chance, taste) },
        Call::Symlink => {
            let target = format!("{}/{}", chance.of(&DIRS), chance.below(100));
            Op::Symlink { path: draw_path(chance, taste), target }
        }
        Call::Attribute => {
            let path = draw_path(chance, taste);
            match chance.below(3) {
                0 => Op::Chmod { path, mode: 0o600 | chance.below(0o200) as u16 },
                1 => Op::SetXattr { path, value: chance.below(1000) },
                _ => Op::GetXattr { path },
            }
        }
        Call::SyncDir => Op::SyncDir { path: draw_dir(chance) },
    }
}

fn draw_rename(chance: &mut Chance, taste: &Taste) -> Op {
    let mode = *chance.of(&[
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    let (from, to) = if chance.percent(20) {
        (draw_new_dir(chance), draw_new_dir(chance))
    } else {
        (draw_path(chance, taste), draw_path(chance, taste))
    };
    Op::Rename { from, to, mode }
}
