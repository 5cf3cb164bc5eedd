//! Peer cache: reads of the shared file system for one file, time lost to hung cache holders, and validity of cached bytes during
//! changes.

use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::HandleNumber;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::counters;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Errno, InodeId, Layout, NodeId, Result, UnitId, View};
use tameike_io::os::runtime::promise;
use tameike_io::shared::SharedFs;
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{World, WorldConfig};

const CREATE: Flags = Flags { write: true, create: true, append: false, truncate: false, exclusive: false };
const UNIT: u64 = UNIT_SIZE as u64;

async fn cached(world: &World, node: usize, op: Op, open: Option<HandleNumber>) -> Result<Output> {
    let (views, _) = world.views(node).ok_or(Errno::EHOSTDOWN)?;
    let caller = world.caller(node, View::Cache).ok_or(Errno::EHOSTDOWN)?;
    kernel::call(views.cache().expect("a view"), &caller, &op, open).await
}

async fn open(world: &World, node: usize, path: &str) -> HandleNumber {
    let open = Op::Open { slot: 0, path: path.to_owned(), flags: Flags::default() };
    let opened = cached(world, node, open, None).await.expect("the open");
    let Output::Opened(handle, _) = opened else { unreachable!("an open returns a handle") };
    handle
}

async fn read(world: &World, node: usize, open: HandleNumber, offset: u64, length: u32) -> Result<Vec<u8>> {
    let read = cached(world, node, Op::Read { slot: 0, offset, length }, Some(open)).await?;
    let Output::Bytes(bytes) = read else { unreachable!("a read returns bytes") };
    Ok(bytes)
}

/// Creates a file outside of the job.
fn make_file(world: &World, path: &str, size: usize) -> InodeId {
    let tree: Arc<dyn SharedFs> = world.tree.mounted_by(NodeId(0));
    let file = tree.create(path.as_bytes(), 0o644).expect("a new file");
    file.write_at(&vec![7; size], 0).expect("its content");
    file.stat().expect("its attributes").inode_id()
}

/// Returns the bytes that the running nodes read from the shared file system.
fn loaded(world: &World) -> u64 {
    let of = |node| {
        world
            .counters(node)
            .into_iter()
            .filter(|counter| counter.name == counters::LOADED_SHARED)
            .map(|counter| counter.value)
            .sum::<u64>()
    };
    (0..world.count()).map(of).sum()
}

/// The job reads the shared file system once, however many nodes read the file at once, even if a reader fails meanwhile. (If the
/// reading home fails, its next incarnation reads what was not stored.)
#[test]
fn a_file_that_all_nodes_read_at_once_is_loaded_once() {
    const NODES: usize = 8;
    for seed in 0..60 {
        let config = WorldConfig {
            slowness: vec![Duration::from_millis(5); NODES],
            ..WorldConfig::plain(seed, NODES)
        };
        let world = World::new(config, Countdown::default());
        let at = world.clone();
        world.simulation.clone().run(async move {
            at.start_all(AgentMode::Serve, false).await.expect("the agents start");
            let inode = make_file(&at, "library", UNIT_SIZE);
            let home = at.cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 }).0 as usize;
            let coordinator = at.cluster.inode_home(inode).0 as usize;
            let mut readers = Vec::new();
            for node in (0..NODES).filter(|node| *node != home) {
                let handle = open(&at, node, "library").await;
                let (resolver, done) = promise();
                let (world, (_, runtime)) = (at.clone(), at.views(node).expect("it runs"));
                let (gone, died) = promise();
                at.on_failure(node, gone);
                runtime.spawn(async move {
                    let offset = *[0, 0, 4096, 500_000].get(node % 4).expect("one of four");
                    let bytes = read(&world, node, handle, offset, 70_000).await;
                    resolver.resolve(bytes);
                });
                readers.push((node, done, died));
            }
            let victim = (0..NODES).find(|node| ![home, coordinator].contains(node)).expect("many nodes");
            at.runtime().sleep(Duration::from_micros(100 * (seed % 50))).await;
            at.kill(victim, false);
            for (node, done, died) in readers {
                match futures_util::future::select(done, died).await {
                    futures_util::future::Either::Left((bytes, _)) => {
                        assert!(bytes.expect("the read") == [7; 70_000], "seed {seed}, node {node}");
                    }
                    futures_util::future::Either::Right(_) => assert_eq!(node, victim, "seed {seed}"),
                }
            }
            assert_eq!(loaded(&at), UNIT, "seed {seed}");
        });
    }
}

/// Readers remembered a hung holder for one file until its next open, and homes not at all: each unit cost half a second.
#[test]
fn a_hung_holder_adds_no_seconds() {
    const NODES: usize = 4;
    const FILES: u64 = 12;
    for seed in 0..10 {
        let world = World::new(WorldConfig::plain(seed, NODES), Countdown::default());
        let at = world.clone();
        world.simulation.clone().run(async move {
            at.start_all(AgentMode::Serve, false).await.expect("the agents start");
            let (hung, reader) = (3, 0);
            let mut names = Vec::new();
            for number in 0..200 {
                let name = format!("file-{number}");
                let inode = make_file(&at, &name, 100_000);
                let home = at.cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 });
                // Neither the reader nor the hung node is a home of the file.
                let others = [home, at.cluster.inode_home(inode)];
                if names.len() < FILES as usize
                    && others.iter().all(|node| ![hung, reader].contains(&(node.0 as usize)))
                {
                    open(&at, hung, &name).await;
                    names.push(name);
                }
            }
            assert_eq!(names.len() as u64, FILES, "seed {seed}");
            for other in (0..NODES).filter(|node| *node != hung) {
                at.network.cut(NodeId(hung as u32), NodeId(other as u32));
            }
            let began = at.runtime().clock.monotonic();
            for name in names {
                let handle = open(&at, reader, &name).await;
                let bytes = read(&at, reader, handle, 0, 100_000).await.expect("the read");
                assert!(bytes == [7; 100_000], "seed {seed}");
            }
            let took = at.runtime().clock.monotonic() - began;
            // Half a second by the reader, and one by each of the two homes.
            assert!(took < Duration::from_secs(2), "seed {seed}: {took:?}");
        });
    }
}

fn call(node: usize, op: Op) -> Action {
    Action::Call { node, view: View::Cache, op }
}

fn alone(node: usize, op: Op) -> Step {
    Step::Together(vec![call(node, op)])
}

fn open_slot(node: usize, flags: Flags) -> Step {
    alone(node, Op::Open { slot: 0, path: "a/x".to_owned(), flags })
}

/// A punch changed bytes after its new generation was visible: a node that opened and read in between cached the old bytes as the
/// new generation.
#[test]
fn bytes_read_during_a_punch_are_not_cached_as_the_new_generation() {
    for seed in 0..150 {
        let nodes = 3;
        let slowness = vec![Duration::from_millis(3); nodes];
        let world = WorldConfig { slowness, ..WorldConfig::plain(seed, nodes) };
        let punch = Op::Space { slot: 0, change: SpaceChange::Punch, offset: 0, length: 60_000 };
        let look = || call(1, Op::Stat { path: "a/x".to_owned() });
        let read = || Op::Read { slot: 0, offset: 0, length: 70_000 };
        let steps = vec![
            open_slot(0, CREATE),
            alone(0, Op::Write { slot: 0, offset: 0, length: 70_000, tag: 5 }),
            alone(0, Op::Fsync { slot: 0 }),
            open_slot(1, Flags::default()),
            Step::Together(vec![
                call(0, punch),
                look(),
                call(1, read()),
                call(2, Op::Stat { path: "a/x".to_owned() }),
            ]),
            alone(1, Op::Close { slot: 0 }),
            open_slot(1, Flags::default()),
            alone(1, read()),
        ];
        let program = Program { world, steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// A bit flip in a frame was not detected after another part of the frame had changed, and was sent to other nodes.
///
/// S32a.
#[test]
fn bits_flipped_in_memory_reach_no_other_node() {
    for (seed, view) in (0..60).flat_map(|seed| [(seed, View::Cache), (seed, View::JobShared)]) {
        let nodes = 3;
        let slowness =
            (0..nodes as u64).map(|node| Duration::from_millis(5 * (1 + (node + seed) % 3))).collect();
        let world = WorldConfig { slowness, ..WorldConfig::plain(seed, nodes) };
        let call = |node, op| Action::Call { node, view, op };
        let alone = |node, op| Step::Together(vec![call(node, op)]);
        let open = |node, flags| alone(node, Op::Open { slot: 0, path: "a/x".to_owned(), flags });
        let read = |offset, length| Op::Read { slot: 0, offset, length };
        let mut steps = vec![
            open(0, CREATE),
            alone(0, Op::Write { slot: 0, offset: 0, length: 2 * UNIT_SIZE as u32 - 5000, tag: 5 }),
            alone(0, Op::Fsync { slot: 0 }),
            open(1, Flags { write: true, ..Flags::default() }),
            alone(1, read(0, UNIT_SIZE as u32)),
            alone(1, read(UNIT + 4096, 5000)),
        ];
        steps.extend((0..6).map(|_| {
            Step::Together(vec![
                Action::Injection(0, Injection::Flip(1)),
                Action::Injection(0, Injection::Flip(0)),
            ])
        }));
        steps.push(alone(1, read(UNIT, 100)));
        if seed % 2 == 0 {
            steps.push(alone(1, Op::Write { slot: 0, offset: 100, length: 100, tag: 6 }));
            steps.push(alone(1, Op::Fsync { slot: 0 }));
        }
        steps.push(open(2, Flags::default()));
        steps.extend((0..24).map(|part| alone(2, read(part * 87_000, 87_000))));
        let program = Program { world, steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}, {view:?}");
    }
}
