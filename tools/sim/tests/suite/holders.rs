//! Peer cache: reads of the shared file system for one file, time lost to hung cache holders, and validity of cached bytes during
//! changes.

use super::programs::{CLOSE, FSYNC, UNIT, bytes_of, cached, on_cluster, open, opened, passes, read, write};
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::HandleNumber;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::counters;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{InodeId, Layout, NodeId, UnitId, View};
use tameike_io::os::runtime::promise;
use tameike_io::shared::SharedFs;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Step};
use tameike_sim::world::{World, WorldConfig};

async fn open_cached(world: &World, node: usize, path: &str) -> HandleNumber {
    opened(world, View::Cache, node, path, Flags::READ).await.expect("the open").0
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
    let all = (0..world.count()).flat_map(|node| world.counters(node));
    all.filter(|counter| counter.name == counters::LOADED_SHARED).map(|counter| counter.value).sum()
}

/// The job reads the shared file system once, however many nodes read the file at once, even if a reader fails meanwhile. (If the
/// reading home fails, its next incarnation reads what was not stored.)
#[test]
fn a_file_that_all_nodes_read_at_once_is_loaded_once() {
    const NODES: usize = 8;
    for seed in 0..60 {
        let slowness = vec![Duration::from_millis(5); NODES];
        on_cluster(WorldConfig { slowness, ..WorldConfig::plain(seed, NODES) }, async |at| {
            let inode = make_file(&at, "library", UNIT_SIZE);
            let home = at.cluster.primary(at.cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 })).0
                as usize;
            let coordinator = at.cluster.primary(at.cluster.inode_home(inode)).0 as usize;
            let mut readers = Vec::new();
            for node in (0..NODES).filter(|node| *node != home) {
                let handle = open_cached(&at, node, "library").await;
                let (resolver, done) = promise();
                let (world, (_, runtime)) = (at.clone(), at.views(node).expect("it runs"));
                let (gone, died) = promise();
                at.on_failure(node, gone);
                runtime.spawn(async move {
                    let offset = [0, 0, 4096, 500_000][node % 4];
                    resolver.resolve(bytes_of(&world, View::Cache, node, handle, (offset, 70_000)).await);
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
        on_cluster(WorldConfig::plain(seed, NODES), async |at| {
            let (hung, reader) = (3, 0);
            let mut names = Vec::new();
            for number in 0..200 {
                let name = format!("file-{number}");
                let inode = make_file(&at, &name, 100_000);
                let home =
                    at.cluster.primary(at.cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 }));
                // Neither the reader nor the hung node is a home of the file.
                let others = [home, at.cluster.primary(at.cluster.inode_home(inode))];
                if names.len() < FILES as usize
                    && others.iter().all(|node| ![hung, reader].contains(&(node.0 as usize)))
                {
                    open_cached(&at, hung, &name).await;
                    names.push(name);
                }
            }
            assert_eq!(names.len() as u64, FILES, "seed {seed}");
            for other in (0..NODES).filter(|node| *node != hung) {
                at.network.cut(NodeId(hung as u32), NodeId(other as u32));
            }
            let began = at.runtime().clock.monotonic();
            for name in names {
                let handle = open_cached(&at, reader, &name).await;
                let bytes = bytes_of(&at, View::Cache, reader, handle, (0, 100_000)).await;
                assert!(bytes.expect("the read") == [7; 100_000], "seed {seed}");
            }
            let took = at.runtime().clock.monotonic() - began;
            // Half a second by the reader, and one by each of the two homes.
            assert!(took < Duration::from_secs(2), "seed {seed}: {took:?}");
        });
    }
}

/// A punch changed bytes after its new generation was visible: a node that opened and read in between cached the old bytes as the
/// new generation.
#[test]
fn bytes_read_during_a_punch_are_not_cached_as_the_new_generation() {
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let punch = Op::Space { slot: 0, change: SpaceChange::Punch, offset: 0, length: 60_000 };
    let steps = [
        cached(0, open("a/x", Flags::CREATE)),
        cached(0, write(0, 70_000, 5)),
        cached(0, FSYNC),
        cached(1, open("a/x", Flags::READ)),
        Step::Together(vec![
            call(0, punch),
            call(1, Op::stat("a/x")),
            call(1, read(0, 70_000)),
            call(2, Op::stat("a/x")),
        ]),
        cached(1, CLOSE),
        cached(1, open("a/x", Flags::READ)),
        cached(1, read(0, 70_000)),
    ];
    for seed in 0..150 {
        let slowness = vec![Duration::from_millis(3); 3];
        passes(WorldConfig { slowness, ..WorldConfig::plain(seed, 3) }, steps.to_vec());
    }
}

/// A bit flip in a frame was not detected after another part of the frame had changed, and was sent to other nodes.
///
/// S32a.
#[test]
fn bits_flipped_in_memory_reach_no_other_node() {
    for (seed, view) in (0..60).flat_map(|seed| [(seed, View::Cache), (seed, View::JobShared)]) {
        let slowness = (0..3).map(|node| Duration::from_millis(5 * (1 + (node + seed) % 3))).collect();
        let world = WorldConfig { slowness, ..WorldConfig::plain(seed, 3) };
        let call = |node, op| Step::call(node, view, op);
        let mut steps = vec![
            call(0, open("a/x", Flags::CREATE)),
            call(0, write(0, 2 * UNIT_SIZE as u32 - 5000, 5)),
            call(0, FSYNC),
            call(1, open("a/x", Flags::WRITE)),
            call(1, read(0, UNIT_SIZE as u32)),
            call(1, read(UNIT + 4096, 5000)),
        ];
        let flips = [1, 0].map(|node| Action::Injection(0, Injection::Flip(node)));
        steps.extend((0..6).map(|_| Step::Together(flips.to_vec())));
        steps.push(call(1, read(UNIT, 100)));
        if seed % 2 == 0 {
            steps.extend([call(1, write(100, 100, 6)), call(1, FSYNC)]);
        }
        steps.push(call(2, open("a/x", Flags::READ)));
        steps.extend((0..24).map(|part| call(2, read(part * 87_000, 87_000))));
        passes(world, steps);
    }
}
