//! Programs and clusters that several tests use.

use std::ops::Range;
use std::sync::Arc;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::HandleNumber;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Attr, Errno, Result, View};
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{World, WorldConfig};

pub const UNIT: u64 = UNIT_SIZE as u64;
pub const CLOSE: Op = Op::Close { slot: 0 };
pub const FSYNC: Op = Op::Fsync { slot: 0 };

pub fn open(path: &str, flags: Flags) -> Op {
    Op::open(0, path, flags)
}

pub fn read(offset: u64, length: u32) -> Op {
    Op::Read { slot: 0, offset, length }
}

pub fn write(offset: u64, length: u32, tag: u64) -> Op {
    Op::Write { slot: 0, offset, length, tag }
}

/// A step with a call in the cache view.
pub fn cached(node: usize, op: Op) -> Step {
    Step::call(node, View::Cache, op)
}

/// A step with a call in the job-shared view.
pub fn shared(node: usize, op: Op) -> Step {
    Step::call(node, View::JobShared, op)
}

/// Runs a program, which must pass. With `crashes`, all agents fail at the end, and the job is recovered.
#[track_caller]
pub fn passes_with(world: WorldConfig, steps: Vec<Step>, crashes: bool) {
    let program = Program { world, steps, crashes };
    assert_eq!(run(&program), Ok(()), "seed {}: {program}", program.world.seed);
}

#[track_caller]
pub fn passes(world: WorldConfig, steps: Vec<Step>) {
    passes_with(world, steps, false);
}

/// Runs a program with several seeds on plain nodes.
#[track_caller]
pub fn passes_on(nodes: usize, seeds: Range<u64>, steps: &[Step]) {
    seeds.for_each(|seed| passes(WorldConfig::plain(seed, nodes), steps.to_vec()));
}

/// Starts the agents of a cluster, and does some work on it.
pub fn on_cluster<T, F: Future<Output = T>>(config: WorldConfig, work: impl FnOnce(Arc<World>) -> F) -> T {
    let world = World::new(config);
    let at = world.clone();
    world.simulation.clone().run(async move {
        at.start_all(AgentMode::Serve, false).await.expect("the agents start");
        work(at).await
    })
}

/// Makes a call on a node of a cluster.
pub async fn call(
    world: &World,
    view: View,
    node: usize,
    op: Op,
    open: Option<HandleNumber>,
) -> Result<Output> {
    let (views, _) = world.views(node).ok_or(Errno::EHOSTDOWN)?;
    let caller = world.caller(node, view).ok_or(Errno::EHOSTDOWN)?;
    kernel::call(&views, &caller, &op, open).await
}

pub async fn opened(
    world: &World,
    view: View,
    node: usize,
    path: &str,
    flags: Flags,
) -> Result<(HandleNumber, Box<Attr>)> {
    match call(world, view, node, open(path, flags), None).await? {
        Output::Opened(handle, attr) => Ok((handle, attr)),
        output => unreachable!("an open returned {output:?}"),
    }
}

pub async fn bytes_of(
    world: &World,
    view: View,
    node: usize,
    handle: HandleNumber,
    (offset, length): (u64, u32),
) -> Result<Vec<u8>> {
    match call(world, view, node, read(offset, length), Some(handle)).await? {
        Output::Bytes(bytes) => Ok(bytes),
        output => unreachable!("a read returned {output:?}"),
    }
}
