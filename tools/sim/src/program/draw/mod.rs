//! Generates programs from seeds. Each seed omits some kinds of calls and faults, so that the others occur in combinations that a
//! uniform mix would rarely produce.

mod filling;
mod locking;
mod racing;
mod sharing;

use super::{Action, Injection, Program, Step};
use crate::op::{DIRS, Flags, Op, SLOTS};
use crate::rng::Rng;
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
use tameike_fabric::simulated::NetworkFaults;

const FILES: [&str; 3] = ["x", "y", "z"];
const LENGTHS: [u32; 7] = [1, 30, 100, 3000, 5000, 5000, 70_000];
/// Write sizes where capacity is small, in bytes.
const LARGE_LENGTHS: [u32; 9] = [1, 30, 100, 3000, 5000, 70_000, 70_000, 400_000, 400_000];
const UNIT: u64 = UNIT_SIZE as u64;
/// Seeds of separate generators for locks, shared reads, pools and home maps.
const LOCKS: u64 = 0x10C4;
const SHARED_READS: u64 = 0x5AED;
const POOLS: u64 = 0xF4A3;
const MAPS: u64 = 0x4A95;

/// The mix of calls and faults of a seed.
struct Profile {
    nodes: usize,
    views: Vec<View>,
    /// Percentage of steps with a fault.
    injection: u64,
    injections: Vec<Kind>,
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
    Partition,
    Network,
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
    let mut rng = Rng::new(seed);
    let mut world = draw_world(&mut rng, seed, canary);
    let mut profile = draw_profile(&mut rng, &world);
    let mut steps = Vec::new();
    let mut tag = 0;
    // Separate generators: a change to one of them does not change the other calls of a seed.
    let mut locking = Rng::new(seed ^ LOCKS);
    let locks = *locking.pick(&[0, 0, 10, 25]);
    let mut sharing = Rng::new(seed ^ SHARED_READS);
    let shares = sharing::draw_percent(&mut sharing, &mut world);
    let mut pools = Rng::new(seed ^ POOLS);
    world.service_frames = *pools.pick(&[u32::MAX, u32::MAX, 2, 1]);
    let fills = filling::draw_percent(&mut pools, &profile);
    let phases = 1 + rng.below(3);
    for _ in 0..phases {
        let injects = !profile.injections.is_empty() && rng.percent(70);
        profile.injection = if injects { 4 + rng.below(12) } else { 0 };
        for _ in 0..10 + rng.below(25) {
            if rng.percent(profile.races) {
                steps.extend(draw_race(&mut rng, &profile, &mut tag));
            } else {
                steps.push(draw_step(&mut rng, &profile, &mut tag));
            }
            if locking.percent(locks) {
                steps.extend(draw_locking(&mut locking, &profile, &mut tag));
            }
            if pools.percent(fills) {
                steps.extend(draw_filling(&mut pools, &profile, &mut tag));
            }
            if sharing.percent(shares) {
                steps.extend(draw_sharing(&mut sharing, &profile, &mut tag));
            }
        }
        steps.push(Step::Check);
    }
    draw_maps(&mut Rng::new(seed ^ MAPS), profile.nodes, &mut steps);
    let crashes = rng.percent(30);
    Program { world, steps, crashes }
}

/// Adds new home maps to steps with calls.
fn draw_maps(rng: &mut Rng, nodes: usize, steps: &mut [Step]) {
    let percent = *rng.pick(&[0, 0, 10, 40]);
    for step in steps {
        if let Step::Together(actions) = step
            && rng.percent(percent)
        {
            let node = rng.below(nodes as u64) as usize;
            actions.push(Action::Injection(rng.below(5000), Injection::Map(node)));
        }
    }
}

fn draw_world(rng: &mut Rng, seed: u64, canary: Option<Canary>) -> WorldConfig {
    let count = *rng.pick(&[1, 2, 2, 3, 3, 3, 4]);
    let mut devices: Vec<bool> = (0..count).map(|_| rng.percent(85)).collect();
    devices[0] |= !devices.iter().any(|&has| has);
    let slow = rng.percent(40);
    let skewed = rng.percent(40);
    let mut times = |is_some: bool, limit: u64| -> Vec<Duration> {
        devices.iter().map(|_| Duration::from_micros(if is_some { rng.below(limit) } else { 0 })).collect()
    };
    let slowness = times(slow, 20_000);
    let skew = times(skewed, 2_000_000);
    WorldConfig {
        seed,
        replicas: 1,
        has_keepers: false,
        inline_max: *rng.pick(&[UNIT_SIZE, UNIT_SIZE, 3000]),
        capacity: if rng.percent(15) { *rng.pick(&[96, 256, 1024, 1024]) << 10 } else { AMPLE_CAPACITY },
        view_frames: u32::MAX,
        service_frames: u32::MAX,
        region_memory: u64::MAX,
        checkpoint_bytes: CHECKPOINT_BYTES,
        slowness,
        skew,
        volatile: rng.percent(40),
        metered: false,
        devices,
        canary,
    }
}

fn draw_profile(rng: &mut Rng, world: &WorldConfig) -> Profile {
    let views = match rng.below(4) {
        0 => vec![View::JobShared],
        1 => vec![View::Cache],
        _ => vec![View::JobShared, View::Cache],
    };
    let kinds = [Kind::Kill, Kind::Partition, Kind::Network, Kind::Tree, Kind::Disk, Kind::Slow, Kind::Rot];
    let injections = kinds.into_iter().filter(|_| rng.percent(30)).collect();
    let weights = CALLS
        .into_iter()
        .map(|(weight, call)| {
            let needed = matches!(call, Call::Open | Call::Create | Call::Write | Call::Read | Call::Close);
            let factor = if needed { 1 + rng.below(2) } else { rng.below(3) };
            (weight * factor, call)
        })
        .collect();
    Profile {
        nodes: world.devices.len(),
        views,
        injection: 0,
        injections,
        weights,
        far: *rng.pick(&[0, 0, 10, 40]),
        together: 1 + rng.below(4),
        files: 1 + rng.below(3),
        races: *rng.pick(&[0, 0, 4, 12]),
        lengths: if world.capacity < AMPLE_CAPACITY { &LARGE_LENGTHS } else { &LENGTHS },
        is_ample: world.capacity >= AMPLE_CAPACITY,
    }
}

fn draw_slot(rng: &mut Rng) -> u8 {
    rng.below(u64::from(SLOTS)) as u8
}

/// Closes the slot, then opens a file in it.
fn reopen(node: usize, view: View, slot: u8, path: &str, flags: Flags) -> [Step; 2] {
    [Op::Close { slot }, Op::open(slot, path, flags)].map(|op| Step::call(node, view, op))
}

/// Chooses a file, and several slots of any nodes.
fn draw_rival_slots(rng: &mut Rng, profile: &Profile) -> (View, String, Vec<(usize, u8)>) {
    let (view, path) = (*rng.pick(&profile.views), draw_path(rng, profile));
    let slots = (0..2 + rng.below(3)).map(|_| (rng.below(profile.nodes as u64) as usize, draw_slot(rng)));
    (view, path, slots.collect())
}

fn draw_some_injection(rng: &mut Rng, profile: &Profile) -> Option<Action> {
    if !rng.percent(profile.injection) {
        return None;
    }
    let latest = *rng.pick(&[1, 500, 5000]);
    let after = rng.below(latest);
    Some(Action::Injection(after, draw_injection(rng, profile)))
}

fn draw_step(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Step {
    if rng.percent(10) {
        return Step::Rest(*rng.pick(&[1, 20, 120, 400, 3000]));
    }
    if rng.percent(2) {
        return Step::Drain;
    }
    let mut actions = Vec::new();
    let mut namers = Vec::new();
    for _ in 0..1 + rng.below(profile.together) {
        let (node, view) = (rng.below(profile.nodes as u64) as usize, *rng.pick(&profile.views));
        let op = draw_op(rng, profile, tag);
        // One change of a view's names or inodes at a time, else its outcome cannot be predicted. Without faults, files may be opened
        // concurrently with it.
        let is_beside = op.only_opens() && profile.injections.is_empty();
        if (op.changes_names() || op.changes_inode()) && !is_beside {
            if namers.contains(&view) {
                continue;
            }
            namers.push(view);
        }
        actions.push(Action::Call { node, view, op });
    }
    actions.extend(draw_some_injection(rng, profile));
    Step::Together(actions)
}

fn draw_injection(rng: &mut Rng, profile: &Profile) -> Injection {
    let node = rng.below(profile.nodes as u64) as usize;
    match rng.pick(&profile.injections) {
        Kind::Kill => {
            // After power loss, bit rot cannot be distinguished from torn writes.
            let power = rng.percent(40) && !profile.injections.contains(&Kind::Rot);
            Injection::Kill { node, power }
        }
        Kind::Partition if rng.percent(35) => Injection::Heal,
        Kind::Partition => {
            let to = rng.below(profile.nodes as u64) as usize;
            Injection::Partition { from: node, to, both: rng.percent(50) }
        }
        Kind::Network => Injection::Network(NetworkFaults {
            delay_max: Duration::from_micros(*rng.pick(&[100, 1000, 30_000])),
            lost: *rng.pick(&[0, 0, 5000, 20_000]) as u32,
            duplicated: *rng.pick(&[0, 10_000, 100_000]) as u32,
            broken: *rng.pick(&[0, 0, 5000]) as u32,
        }),
        Kind::Tree => {
            let mut some = |limit: u64| if rng.percent(40) { rng.below(limit) as u32 } else { 0 };
            let (reads, writes, syncs, full) = (some(60), some(200), some(600), some(200));
            Injection::Tree(TreeFaults { reads, writes, syncs, full, read_only: rng.percent(10) })
        }
        Kind::Disk => {
            let mut some = |limit: u64| if rng.percent(40) { rng.below(limit) as u32 } else { 0 };
            Injection::Disk(node, DiskFaults { reads: some(100), writes: some(100), syncs: some(60) })
        }
        Kind::Slow => Injection::Slow(node, *rng.pick(&[0, 30, 300])),
        Kind::Rot => Injection::Rot(node),
    }
}

fn draw_path(rng: &mut Rng, profile: &Profile) -> String {
    let dir = *rng.pick(&["", "a", "a", "b", "a/c", "d", "a/d"]);
    let name = FILES[rng.below(profile.files) as usize];
    crate::model::path::join(dir, name)
}

fn draw_dir(rng: &mut Rng) -> String {
    (*rng.pick(&["", "a", "b", "a/c", "d", "a/d", "b/d"])).to_owned()
}

fn draw_new_dir(rng: &mut Rng) -> String {
    (*rng.pick(&["d", "a/d", "b/d", "d/e"])).to_owned()
}

fn draw_offset(rng: &mut Rng, profile: &Profile) -> u64 {
    let near = rng.below(80);
    if rng.percent(profile.far) {
        return (1 + rng.below(2)) * UNIT - 40 + near;
    }
    *rng.pick(&[0, 0, near, near * 13, 4096 - 40 + near, 20_000 + near * 700])
}

fn draw_op(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Op {
    let total: u64 = profile.weights.iter().map(|(weight, _)| weight).sum();
    let (drawn, mut sum) = (rng.below(total), 0);
    let call = profile.weights.iter().find(|(weight, _)| {
        sum += weight;
        drawn < sum
    });
    let slot = draw_slot(rng);
    match call.map_or(Call::Open, |(_, call)| *call) {
        Call::Open => {
            let write = rng.percent(60);
            let truncate = write && rng.percent(15);
            Op::open(slot, &draw_path(rng, profile), Flags { write, truncate, ..Flags::READ })
        }
        Call::Create => {
            let (append, exclusive) = (rng.percent(15), rng.percent(20));
            let truncate = rng.percent(15);
            let flags = Flags { write: true, append, truncate, create: true, exclusive };
            Op::open(slot, &draw_path(rng, profile), flags)
        }
        Call::Read => {
            let length = *rng.pick(&[1, 100, 5000, 5000, 70_000, UNIT as u32]);
            Op::Read { slot, offset: draw_offset(rng, profile), length }
        }
        Call::Write => {
            *tag += 1;
            let length = *rng.pick(profile.lengths);
            Op::Write { slot, offset: draw_offset(rng, profile), length, tag: *tag }
        }
        Call::Fsync => Op::Fsync { slot },
        Call::Close => Op::Close { slot },
        Call::Truncate => Op::Truncate { path: draw_path(rng, profile), size: draw_offset(rng, profile) },
        Call::Stat => {
            Op::Stat { path: if rng.percent(80) { draw_path(rng, profile) } else { draw_dir(rng) } }
        }
        Call::List => Op::List { path: draw_dir(rng) },
        Call::Directory if rng.percent(60) => Op::Mkdir { path: draw_new_dir(rng) },
        Call::Directory => Op::Rmdir { path: draw_new_dir(rng) },
        Call::Unlink => Op::Unlink { path: draw_path(rng, profile) },
        Call::Rename => draw_rename(rng, profile),
        Call::Link => Op::Link { from: draw_path(rng, profile), to: draw_path(rng, profile) },
        Call::Symlink if rng.percent(50) => Op::Readlink { path: draw_path(rng, profile) },
        Call::Symlink => {
            let target = format!("{}/{}", rng.pick(&DIRS), rng.below(100));
            Op::Symlink { path: draw_path(rng, profile), target }
        }
        Call::Attribute => {
            let path = draw_path(rng, profile);
            match rng.below(3) {
                0 => Op::Chmod { path, mode: 0o600 | rng.below(0o200) as u16 },
                1 => Op::SetXattr { path, value: rng.below(1000) },
                _ => Op::GetXattr { path },
            }
        }
        Call::SyncDir => Op::SyncDir { path: draw_dir(rng) },
    }
}

fn draw_rename(rng: &mut Rng, profile: &Profile) -> Op {
    let mode = *rng.pick(&[
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    let (from, to) = if rng.percent(20) {
        (draw_new_dir(rng), draw_new_dir(rng))
    } else {
        (draw_path(rng, profile), draw_path(rng, profile))
    };
    Op::Rename { from, to, mode }
}
