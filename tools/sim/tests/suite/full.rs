//! Programs on nodes with small capacity.

use super::programs::{
    CLOSE, FSYNC, UNIT, cached, call, on_cluster, open, opened, passes, read, shared, write,
};
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::SpaceChange;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{Canary, World, WorldConfig};

fn passes_with_one_unit(steps: &[Step]) {
    for seed in 0..20 {
        passes(WorldConfig { capacity: UNIT, ..WorldConfig::plain(seed, 3) }, steps.to_vec());
    }
}

/// Node 1 creates a file in the job-shared view.
fn shared_file(path: &str, length: u32, tag: u64) -> [Step; 3] {
    [open(path, Flags::APPEND), write(0, length, tag), CLOSE].map(|op| shared(1, op))
}

/// Appends to a file of the cache view on a node repeatedly.
async fn keep_appending(world: &World, node: usize, length: u32) {
    let (handle, _) = opened(world, View::Cache, node, "x", Flags::APPEND).await.expect("the open");
    for round in 0..6 {
        for op in [write(0, length, round + 1), FSYNC] {
            // A program with small writes relies on the flushes of others.
            if length < 10_000 && op == FSYNC {
                continue;
            }
            let output = call(world, View::Cache, node, op.clone(), Some(handle)).await;
            assert!(output.is_ok(), "node {node}, round {round}: {op}: {output:?}");
        }
    }
    let output = call(world, View::Cache, node, CLOSE, Some(handle)).await;
    assert!(output.is_ok(), "node {node}: {output:?}");
}

/// S19b.
#[test]
fn writers_to_a_full_cache_view_wait_for_the_flush_while_others_write() {
    for seed in 0..60 {
        let devices = vec![true, false, false];
        let config = WorldConfig { capacity: 96 << 10, devices, ..WorldConfig::plain(seed, 3) };
        on_cluster(config, async |at| {
            let (one, other) = (keep_appending(&at, 1, 30), keep_appending(&at, 2, 3000));
            futures_util::future::join3(keep_appending(&at, 0, 70_000), one, other).await;
        });
    }
}

/// S19a.
#[test]
fn a_full_view_returns_enospc_and_has_space_after_removals() {
    let paths = ["x", "y", "z", "a/x", "a/y", "a/z", "b/x", "b/y", "b/z"];
    let files = paths.iter().zip(1..).flat_map(|(path, tag)| shared_file(path, 400_000, tag));
    passes_with_one_unit(&files.chain([Step::Check]).collect::<Vec<_>>());
}

/// S19c.
#[test]
fn punching_a_small_file_in_a_full_view_succeeds_or_is_refused() {
    let mut steps = shared_file("b/x", 3000, 1).to_vec();
    for (tag, path) in (2..).zip(["x", "y", "z", "a/x", "a/y", "a/z"]) {
        steps.extend(shared_file(path, 700_000, tag));
    }
    let punch = Op::Space { slot: 0, change: SpaceChange::Punch, offset: 0, length: 4096 };
    steps.extend([shared(2, open("b/x", Flags::APPEND)), shared(2, punch), Step::Check]);
    passes_with_one_unit(&steps);
}

/// A write far behind the end got ENOSPC after its acknowledgement. An append of the same node landed before it; the model assumed the
/// far end.
#[test]
fn an_append_after_a_write_lost_to_enospc_lands_at_the_real_end() {
    passes_with_one_unit(&[
        shared(1, open("a/x", Flags::APPEND)),
        shared(1, write(0, 3 * UNIT_SIZE as u32, 1)),
        shared(1, FSYNC),
        shared(2, open("a/y", Flags::CREATE)),
        shared(2, Op::open(1, "a/y", Flags::APPEND)),
        shared(2, write(0, 100, 2)),
        shared(2, write(2 * UNIT + 23, 70_000, 3)),
        shared(2, Op::Write { slot: 1, offset: 0, length: 30, tag: 4 }),
        Step::Check,
    ]);
}

/// Bytes lost to ENOSPC read as zeros, except that the model reverted an earlier bit flip of the lost bytes.
#[test]
fn bytes_lost_to_enospc_read_as_zeros_after_a_bit_flip() {
    let cached = |op| cached(2, op);
    let open = |slot| cached(Op::open(slot, "b/z", Flags::CREATE));
    let punch = |slot, offset, length| cached(Op::Space { slot, change: SpaceChange::Punch, offset, length });
    let mut steps = vec![open(0), cached(write(UNIT - 50, 5000, 18)), punch(0, 30_000, UNIT)];
    steps.push(cached(read(65_536, 70_000)));
    steps.extend((0..5).map(|_| Step::inject(Injection::Flip(2))));
    steps.extend([cached(write(0, 400_000, 19)), open(1), punch(1, 0, 4096)]);
    steps.push(cached(Op::Read { slot: 1, offset: 0, length: UNIT_SIZE as u32 }));
    for seed in 0..20 {
        let world = WorldConfig { capacity: 256 << 10, volatile: true, ..WorldConfig::plain(seed, 3) };
        passes(world, steps.clone());
    }
}

/// Writes without space waited at their home and held its request frames. The messages of the flush that would have freed space
/// were behind such writes on their connection, and were not read.
#[test]
fn writes_that_wait_for_space_do_not_block_a_flush() {
    let mut steps = Vec::new();
    // The inode number of a file decides its coordinator.
    for (number, path) in (0..).zip(["x", "y", "z"]) {
        steps.push(cached(0, open(path, Flags::CREATE)));
        steps.extend((0..6).map(|index| cached(0, write(index * UNIT, 900_000, 10 * number + index + 1))));
        steps.push(cached(0, CLOSE));
    }
    let mut hung = 0;
    for seed in 0..20 {
        let plain = WorldConfig { capacity: UNIT, service_frames: 1, ..WorldConfig::plain(seed, 2) };
        passes(plain.clone(), steps.clone());
        let world = WorldConfig { canary: Some(Canary::WaitingFrame), ..plain };
        let outcome = run(&Program { world, steps: steps.clone(), crashes: false });
        hung += u32::from(outcome.is_err_and(|failure| failure.message.contains("does not end")));
    }
    assert!(hung > 0, "no seed hangs with writes that wait and hold a frame");
}

/// A read of two units held the frame of the first while it waited for one for the second: such reads could hold all frames.
#[test]
fn a_read_of_two_units_needs_one_frame() {
    for (view, nodes) in [(View::Cache, 1), (View::JobShared, 1), (View::Cache, 2), (View::JobShared, 2)] {
        let open = || open("x", Flags::CREATE);
        let read = read(520, UNIT_SIZE as u32);
        let calls = [open(), write(0, 2 * UNIT_SIZE as u32, 1), CLOSE, open(), read];
        let world = WorldConfig { service_frames: 1, view_frames: 2, ..WorldConfig::plain(1, nodes) };
        passes(world, calls.map(|op| Step::call(0, view, op)).into());
    }
}

/// Two writes that each take most of a node's space: while one was in flight, its blocks were neither clean nor dirty. The other one
/// found nothing to flush, and failed with ENOSPC at once.
///
/// S19b.
#[test]
fn a_writer_waits_for_writes_in_flight_that_take_all_space() {
    let write = |index| write(index * UNIT, 900_000, index);
    let calls = [open("y", Flags::CREATE), write(1), write(2), write(3), FSYNC];
    let steps = calls.map(|op| cached(0, op));
    for (seed, inline_max) in (0..40).map(|seed| (seed, [UNIT_SIZE, 3000][seed as usize % 2])) {
        let plain = WorldConfig::plain(seed, 1 + seed as usize % 3);
        passes(WorldConfig { capacity: UNIT, inline_max, ..plain }, steps.to_vec());
    }
}
