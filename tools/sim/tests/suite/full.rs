//! Programs on nodes with small capacity.

use std::sync::Arc;
use tameike_agent::control::AgentMode;
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{Canary, World, WorldConfig};

const APPEND: Flags = Flags { write: true, append: true, create: true, truncate: false, exclusive: false };

fn call(node: usize, view: View, op: Op) -> Action {
    Action::Call { node, view, op }
}

fn open(node: usize, view: View, path: &str) -> Step {
    let op = Op::Open { slot: 0, path: path.to_owned(), flags: APPEND };
    Step::Together(vec![call(node, view, op)])
}

fn write(node: usize, view: View, length: u32, tag: u64) -> Action {
    call(node, view, Op::Write { slot: 0, offset: 0, length, tag })
}

fn passes(steps: &[Step]) {
    for seed in 0..20 {
        let world = WorldConfig { capacity: UNIT_SIZE as u64, ..WorldConfig::plain(seed, 3) };
        let program = Program { world, steps: steps.to_vec(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// Appends to a file of the cache view on a node repeatedly.
async fn keep_appending(world: &World, node: usize, length: u32) {
    let (views, _) = world.views(node).expect("the node runs");
    let caller = world.caller(node, View::Cache).expect("the node runs");
    let cache = views.cache().expect("a view");
    let open = Op::Open { slot: 0, path: "x".to_owned(), flags: APPEND };
    let Ok(Output::Opened(handle, _)) = kernel::call(cache, &caller, &open, None).await else {
        unreachable!("an open returns a handle")
    };
    for round in 0..6 {
        for op in [Op::Write { slot: 0, offset: 0, length, tag: round + 1 }, Op::Fsync { slot: 0 }] {
            // A program with small writes relies on the flushes of others.
            if length < 10_000 && matches!(op, Op::Fsync { .. }) {
                continue;
            }
            let output = kernel::call(cache, &caller, &op, Some(handle)).await;
            assert!(output.is_ok(), "node {node}, round {round}: {op}: {output:?}");
        }
    }
    let output = kernel::call(cache, &caller, &Op::Close { slot: 0 }, Some(handle)).await;
    assert!(output.is_ok(), "node {node}: {output:?}");
}

/// S19b.
#[test]
fn writers_to_a_full_cache_view_wait_for_the_flush_while_others_write() {
    for seed in 0..60 {
        let devices = vec![true, false, false];
        let config = WorldConfig { capacity: 96 << 10, devices, ..WorldConfig::plain(seed, 3) };
        let world = World::new(config, Countdown::default());
        let at = Arc::clone(&world);
        world.simulation.clone().run(async move {
            at.start_all(AgentMode::Serve, false).await.expect("the agents start");
            let (one, other) = (keep_appending(&at, 1, 30), keep_appending(&at, 2, 3000));
            futures_util::future::join3(keep_appending(&at, 0, 70_000), one, other).await;
        });
    }
}

/// S19a.
#[test]
fn a_full_view_returns_enospc_and_has_space_after_removals() {
    let view = View::JobShared;
    let mut steps = Vec::new();
    for (tag, path) in ["x", "y", "z", "a/x", "a/y", "a/z", "b/x", "b/y", "b/z"].into_iter().enumerate() {
        steps.push(open(1, view, path));
        steps.push(Step::Together(vec![write(1, view, 400_000, tag as u64 + 1)]));
        steps.push(Step::Together(vec![call(1, view, Op::Close { slot: 0 })]));
    }
    steps.push(Step::Check);
    passes(&steps);
}

/// S19c.
#[test]
fn punching_a_small_file_in_a_full_view_succeeds_or_is_refused() {
    let shared = |node, op| Step::Together(vec![call(node, View::JobShared, op)]);
    let mut steps = vec![open(1, View::JobShared, "b/x")];
    steps.push(Step::Together(vec![write(1, View::JobShared, 3000, 1)]));
    steps.push(shared(1, Op::Close { slot: 0 }));
    for (tag, path) in ["x", "y", "z", "a/x", "a/y", "a/z"].into_iter().enumerate() {
        steps.push(open(1, View::JobShared, path));
        steps.push(Step::Together(vec![write(1, View::JobShared, 700_000, tag as u64 + 2)]));
        steps.push(shared(1, Op::Close { slot: 0 }));
    }
    steps.push(open(2, View::JobShared, "b/x"));
    let change = tameike_core::wire::unit::SpaceChange::Punch;
    steps.push(shared(2, Op::Space { slot: 0, change, offset: 0, length: 4096 }));
    steps.push(Step::Check);
    passes(&steps);
}

/// A write far behind the end got ENOSPC after its acknowledgement. An append of the same node landed before it; the model assumed the
/// far end.
#[test]
fn an_append_after_a_write_lost_to_enospc_lands_at_the_real_end() {
    let shared = |node, op| Step::Together(vec![call(node, View::JobShared, op)]);
    let open_y = |slot, append| Op::Open { slot, path: "a/y".to_owned(), flags: Flags { append, ..APPEND } };
    let far = 2 * UNIT_SIZE as u64 + 23;
    let steps = [
        open(1, View::JobShared, "a/x"),
        Step::Together(vec![write(1, View::JobShared, 3 * UNIT_SIZE as u32, 1)]),
        shared(1, Op::Fsync { slot: 0 }),
        shared(2, open_y(0, false)),
        shared(2, open_y(1, true)),
        shared(2, Op::Write { slot: 0, offset: 0, length: 100, tag: 2 }),
        shared(2, Op::Write { slot: 0, offset: far, length: 70_000, tag: 3 }),
        shared(2, Op::Write { slot: 1, offset: 0, length: 30, tag: 4 }),
        Step::Check,
    ];
    passes(&steps);
}

/// Bytes lost to ENOSPC read as zeros, except that the model reverted an earlier bit flip of the lost bytes.
#[test]
fn bytes_lost_to_enospc_read_as_zeros_after_a_bit_flip() {
    let cached = |op| Step::Together(vec![call(2, View::Cache, op)]);
    let write = |offset, length, tag| cached(Op::Write { slot: 0, offset, length, tag });
    let open =
        |slot| cached(Op::Open { slot, path: "b/z".to_owned(), flags: Flags { append: false, ..APPEND } });
    let punch = |slot, offset, length| {
        cached(Op::Space { slot, change: tameike_core::wire::unit::SpaceChange::Punch, offset, length })
    };
    let mut steps = vec![open(0), write(UNIT_SIZE as u64 - 50, 5000, 18), punch(0, 30_000, UNIT_SIZE as u64)];
    steps.push(cached(Op::Read { slot: 0, offset: 65_536, length: 70_000 }));
    steps.extend((0..5).map(|_| Step::Together(vec![Action::Injection(0, Injection::Flip(2))])));
    steps.extend([write(0, 400_000, 19), open(1), punch(1, 0, 4096)]);
    steps.push(cached(Op::Read { slot: 1, offset: 0, length: UNIT_SIZE as u32 }));
    for seed in 0..20 {
        let world = WorldConfig { capacity: 256 << 10, volatile: true, ..WorldConfig::plain(seed, 3) };
        let program = Program { world, steps: steps.clone(), crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// Writes without space waited at their home and held its request frames. The messages of the flush that would have freed space
/// were behind such writes on their connection, and were not read.
#[test]
fn writes_that_wait_for_space_do_not_block_a_flush() {
    let cached = |op| Step::Together(vec![call(0, View::Cache, op)]);
    let mut steps = Vec::new();
    // The inode number of a file decides its coordinator.
    for (number, path) in ["x", "y", "z"].into_iter().enumerate() {
        let flags = Flags { append: false, ..APPEND };
        steps.push(cached(Op::Open { slot: 0, path: path.to_owned(), flags }));
        for index in 0..6 {
            let tag = 10 * number as u64 + index + 1;
            steps.push(cached(Op::Write { slot: 0, offset: index * UNIT_SIZE as u64, length: 900_000, tag }));
        }
        steps.push(cached(Op::Close { slot: 0 }));
    }
    let mut hung = 0;
    for seed in 0..20 {
        let plain =
            WorldConfig { capacity: UNIT_SIZE as u64, service_frames: 1, ..WorldConfig::plain(seed, 2) };
        let program = |canary| {
            let world = WorldConfig { canary, ..plain.clone() };
            Program { world, steps: steps.clone(), crashes: false }
        };
        assert_eq!(run(&program(None)), Ok(()), "seed {seed}");
        let outcome = run(&program(Some(Canary::WaitingFrame)));
        hung += u32::from(outcome.is_err_and(|failure| failure.message.contains("does not end")));
    }
    assert!(hung > 0, "no seed hangs with writes that wait and hold a frame");
}

/// A read of two units held the frame of the first while it waited for one for the second: such reads could hold all frames.
#[test]
fn a_read_of_two_units_needs_one_frame() {
    for (view, nodes) in [(View::Cache, 1), (View::JobShared, 1), (View::Cache, 2), (View::JobShared, 2)] {
        let at = |op| Step::Together(vec![call(0, view, op)]);
        let open = |path: &str| {
            at(Op::Open { slot: 0, path: path.to_owned(), flags: Flags { append: false, ..APPEND } })
        };
        let read = at(Op::Read { slot: 0, offset: 520, length: UNIT_SIZE as u32 });
        let write = at(Op::Write { slot: 0, offset: 0, length: 2 * UNIT_SIZE as u32, tag: 1 });
        let steps = vec![open("x"), write, at(Op::Close { slot: 0 }), open("x"), read];
        let world = WorldConfig { service_frames: 1, view_frames: 2, ..WorldConfig::plain(1, nodes) };
        assert_eq!(run(&Program { world, steps, crashes: false }), Ok(()), "{view:?}, {nodes} nodes");
    }
}

/// Two writes that each take most of a node's space: while one was in flight, its blocks were neither clean nor dirty. The other one
/// found nothing to flush, and failed with ENOSPC at once.
///
/// S19b.
#[test]
fn a_writer_waits_for_writes_in_flight_that_take_all_space() {
    let cached = |op| Step::Together(vec![call(0, View::Cache, op)]);
    let write = |index: u64| {
        cached(Op::Write { slot: 0, offset: index * UNIT_SIZE as u64, length: 900_000, tag: index })
    };
    let flags = Flags { append: false, ..APPEND };
    let open = cached(Op::Open { slot: 0, path: "y".to_owned(), flags });
    let steps = vec![open, write(1), write(2), write(3), cached(Op::Fsync { slot: 0 })];
    for (seed, inline_max) in (0..40).map(|seed| (seed, [UNIT_SIZE, 3000][seed as usize % 2])) {
        let plain = WorldConfig::plain(seed, 1 + seed as usize % 3);
        let world = WorldConfig { capacity: UNIT_SIZE as u64, inline_max, ..plain };
        assert_eq!(run(&Program { world, steps: steps.clone(), crashes: false }), Ok(()), "seed {seed}");
    }
}
