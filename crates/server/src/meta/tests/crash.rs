//! Atomicity: a crash of each node at every message and at every log write of an operation. Afterwards the operation has taken full
//! effect or none, and leaves nothing behind.

use super::check::check;
use super::client::{Client, new};
use super::world::{CrashPoint, World};
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::limits::UNSHARDED_ENTRIES_MAX;
use tameike_core::wire::meta::{Command, MetaReply, RenameMode, Target};
use tameike_core::{Errno, FileKind, InodeId, NodeId, Result};

const NODES: usize = 3;

struct Setup {
    /// Directories with entries on different nodes.
    dirs: [InodeId; NODES],
    file: Target,
    sub: Target,
}

async fn setup(client: &Client) -> Setup {
    let mut dirs = [InodeId::ROOT; NODES];
    for number in 0.. {
        let dir = client.create(InodeId::ROOT, &format!("dir{number}"), FileKind::Directory).await.unwrap();
        dirs[client.world.cluster.primary(client.world.cluster.children_home(dir)).0 as usize] = dir;
        if !dirs.contains(&InodeId::ROOT) {
            break;
        }
    }
    let file = client.create(dirs[0], "file", FileKind::File).await.unwrap();
    let other = client.create(dirs[1], "other", FileKind::File).await.unwrap();
    for inode in [file, other] {
        let end = 3 << 20;
        client.change(inode, Command::Commit { inode, end, sparse: false, now: client.now() }).await.unwrap();
        for node in 0..NODES {
            client.world.write_units(NodeId(node as u32), inode, b"data");
        }
    }
    let sub = client.create(dirs[0], "sub", FileKind::Directory).await.unwrap();
    client.create(dirs[1], "empty", FileKind::Directory).await.unwrap();
    let file = Target { inode: file, kind: FileKind::File };
    let sub = Target { inode: sub, kind: FileKind::Directory };
    // After this, a name and its inode may be on different nodes.
    client.link(file, dirs[2], "link").await.unwrap();
    client.rename((dirs[1], "other"), (dirs[0], "moved"), RenameMode::Replace).await.unwrap();
    client.rename((dirs[1], "empty"), (dirs[2], "empty"), RenameMode::Replace).await.unwrap();
    Setup { dirs, file, sub }
}

/// Starts a cluster with the names of a [`Setup`].
fn cluster(seed: u64) -> (Arc<World>, Client, Setup) {
    let world = World::new(seed, &[true; NODES]);
    let client = super::client(&world);
    let setup = world.machine.run(setup(&client));
    (world, client, setup)
}

type Listing = Vec<Option<Vec<(Vec<u8>, InodeId)>>>;

async fn listing(client: &Client, setup: &Setup) -> Listing {
    let mut listing = Vec::new();
    for dir in setup.dirs.into_iter().chain([setup.sub.inode, InodeId::ROOT]) {
        let names = client.read_dir(dir, 500).await.ok().map(Vec::into_iter);
        listing.push(names.map(|names| names.map(|name| (name.name, name.target.inode)).collect()));
    }
    listing
}

#[derive(Clone, Copy, Debug)]
enum CrashAt {
    Message(CrashPoint),
    /// The node's log fails after this many writes, then the node crashes.
    Write(CrashPoint),
}

/// Runs `work` with a crash. Returns the names before and after, the result, and the number of messages.
fn run(
    work: &impl AsyncFn(&Client, &Setup) -> Result<()>,
    crash: Option<CrashAt>,
) -> (Listing, Listing, Result<()>, u64) {
    let (world, client, setup) = cluster(7);
    world.machine.finish();
    let before = world.machine.run(listing(&client, &setup));
    world.crash_point(match crash {
        Some(CrashAt::Message(crash_point)) => Some(crash_point),
        _ => None,
    });
    if let Some(CrashAt::Write(crash_point)) = crash {
        world.faults[crash_point.node].after(crash_point.event);
    }
    let result = world.machine.run(work(&client, &setup));
    if let Some(CrashAt::Write(crash_point)) = crash {
        world.kill(crash_point.node);
    }
    let events = world.events();
    if crash.is_none() {
        world.machine.finish();
    }
    world.heal();
    check(&world);
    let after = world.machine.run(listing(&client, &setup));
    (before, after, result, events)
}

/// Runs `work` with a crash at every point.
fn walk(work: impl AsyncFn(&Client, &Setup) -> Result<()>) {
    let (before, done, result, events) = run(&work, None);
    result.expect("it succeeds without a crash");
    let check = |crash| {
        let (_, after, result, _) = run(&work, Some(crash));
        let whole = after == done || after == before;
        assert!(whole, "{crash:?}: ended as {result:?}\nbefore {before:?}\ndone {done:?}\nafter {after:?}");
        after == done
    };
    let mut ends = [false; 2];
    for node in 0..NODES {
        for event in 0..=events {
            ends[usize::from(check(CrashAt::Message(CrashPoint { node, event })))] = true;
        }
        for event in 0..12 {
            ends[usize::from(check(CrashAt::Write(CrashPoint { node, event })))] = true;
        }
    }
    assert_eq!(ends, [true; 2], "some crashes come before the decision and some after");
}

/// Renames with a crash at every point. A name is given with the number of its directory.
fn walk_rename(from: (usize, &str), to: (usize, &str), mode: RenameMode) {
    walk(async |client, Setup { dirs, .. }| {
        client.rename((dirs[from.0], from.1), (dirs[to.0], to.1), mode).await
    });
}

#[test]
fn unlink_of_an_inode_on_another_node() {
    walk(async |client, setup| client.unlink(setup.dirs[0], "moved").await);
    walk(async |client, setup| client.unlink(setup.dirs[2], "link").await);
}

#[test]
fn link_of_an_inode_on_another_node() {
    walk(async |client, setup| client.link(setup.file, setup.dirs[1], "new").await);
}

#[test]
fn rmdir_with_children_on_other_nodes() {
    walk(async |client, setup| client.rmdir(setup.dirs[0], "sub").await);
    walk(async |client, setup| client.rmdir(setup.dirs[2], "empty").await);
}

#[test]
fn rename_of_a_file_over_another() {
    walk_rename((0, "file"), (1, "new"), RenameMode::Replace);
    walk_rename((2, "link"), (0, "moved"), RenameMode::Replace);
}

#[test]
fn rename_of_a_directory_over_another() {
    walk_rename((0, "sub"), (2, "empty"), RenameMode::Replace);
    walk_rename((2, "empty"), (1, "new"), RenameMode::NoReplace);
}

#[test]
fn exchange_of_a_file_and_a_directory() {
    walk_rename((0, "sub"), (2, "link"), RenameMode::Exchange);
}

#[test]
fn a_synced_operation_is_not_lost() {
    let (world, client, setup) = cluster(8);
    let done = world.machine.run(async {
        client.rename((setup.dirs[0], "file"), (setup.dirs[1], "new"), RenameMode::Replace).await.unwrap();
        client.create(setup.dirs[0], "made", FileKind::File).await.unwrap();
        for node in 0..NODES {
            let sync = tameike_core::wire::meta::MetaRequest::Sync { durable: false };
            assert_eq!(client.request(NodeId(node as u32), sync).await, Ok(MetaReply::Done));
        }
        listing(&client, &setup).await
    });
    (0..NODES).for_each(|node| world.kill(node));
    world.heal();
    check(&world);
    assert_eq!(world.machine.run(listing(&client, &setup)), done);
}

#[test]
fn inode_numbers_are_never_reused() {
    let world = World::new(9, &[true]);
    let client = super::client(&world);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        for number in 0..5 {
            let inode = world.machine.run(client.create(InodeId::ROOT, &format!("{number}"), FileKind::File));
            assert!(inode.is_err() || seen.insert(inode.unwrap()));
        }
        world.kill(0);
        world.heal();
    }
    assert!(seen.len() >= 5);
}

#[test]
fn a_truncation_is_completed_after_a_crash() {
    for node in 0..NODES {
        for event in 0..20 {
            let (world, client, setup) = cluster(10);
            world.machine.finish();
            world.crash_point(Some(CrashPoint { node, event }));
            let inode = setup.file.inode;
            let change = AttrChange { size: Some(2), ..AttrChange::default() };
            let result = world.machine.run(client.set_attr(inode, change));
            world.heal();
            check(&world);
            let size = world.machine.run(client.stat(inode)).unwrap().size;
            assert!(size == 2 || result.is_err());
            for node in 0..NODES {
                let length = world.units(node)[&inode].len();
                assert_eq!(length, if size == 2 { 2 } else { 4 }, "{length} bytes remain of {size}");
            }
        }
    }
}

#[test]
fn sharding_is_completed_after_a_crash() {
    for node in 0..NODES {
        for event in 0..10 {
            let world = World::new(11, &[true; NODES]);
            let client = super::client(&world);
            let dir = world.machine.run(crowd(&client));
            world.crash_point(Some(CrashPoint { node, event }));
            let last = world.machine.run(client.create(dir, "last", FileKind::File));
            let home = world.cluster.primary(world.cluster.children_home(dir));
            let minute = std::time::Duration::from_secs(60);
            world.machine.run(world.machine.runtime_of(home.0 as usize).sleep(minute));
            world.heal();
            check(&world);
            // Creates that a crashed node had only in memory may be lost, the last ones first.
            let names = world.machine.run(client.read_dir(dir, 500)).unwrap();
            assert!(names.len() as u64 <= UNSHARDED_ENTRIES_MAX + 1);
            if node != home.0 as usize {
                assert_eq!(names.len() as u64, UNSHARDED_ENTRIES_MAX + u64::from(last.is_ok()));
                assert!(world.machine.run(client.dir_stat(dir)).unwrap().sharded);
            }
        }
    }
}

#[test]
fn names_of_a_pending_operation_are_blocked_until_its_nodes_restart() {
    let (world, client, setup) = cluster(12);
    let (from, to) = ((setup.dirs[0], "file"), (setup.dirs[1], "new"));
    // The node of the new name crashes before it replies: it may have the name or not.
    world.crash_point(Some(CrashPoint { node: 1, event: 3 }));
    let result = world.machine.run(client.rename(from, to, RenameMode::Replace));
    assert_eq!(result.unwrap_err().errno, Errno::EHOSTDOWN);
    for restart in [false, true] {
        if restart {
            world.kill(0);
            world.start(0);
        }
        for result in [
            world.machine.run(client.lookup(from.0, from.1)).map(|_| ()),
            world.machine.run(client.unlink(from.0, from.1)),
            world.machine.run(client.rename((setup.dirs[2], "link"), from, RenameMode::Replace)),
        ] {
            let errno = result.unwrap_err().errno;
            assert!(matches!(errno, Errno::ETIMEDOUT | Errno::EBUSY), "{errno:?}");
        }
        assert!(world.machine.run(client.lookup(setup.dirs[0], "sub")).is_ok());
    }
    world.heal();
    check(&world);
    assert_eq!(world.machine.run(client.lookup(to.0, to.1)), Ok(setup.file));
    assert_eq!(world.machine.run(client.lookup(from.0, from.1)).unwrap_err().errno, Errno::ENOENT);
}

#[test]
fn sharding_waits_until_its_nodes_restart() {
    let world = World::new(13, &[true; NODES]);
    let client = super::client(&world);
    let dir = world.machine.run(crowd(&client));
    let home = world.cluster.primary(world.cluster.children_home(dir)).0 as usize;
    world.kill((home + 1) % NODES);
    world.machine.run(client.create(dir, "last", FileKind::File)).unwrap();
    for restart in [false, true] {
        if restart {
            world.kill(home);
            world.start(home);
        }
        let create = world.machine.run(client.create(dir, "more", FileKind::File));
        assert_eq!(create.unwrap_err().errno, Errno::ETIMEDOUT);
    }
    world.heal();
    check(&world);
    let names = world.machine.run(client.read_dir(dir, 500)).unwrap();
    assert_eq!(names.len() as u64, UNSHARDED_ENTRIES_MAX + 1);
    assert!(world.machine.run(client.dir_stat(dir)).unwrap().sharded);
}

async fn crowd(client: &Client) -> InodeId {
    let dir = client.create(InodeId::ROOT, "crowd", FileKind::Directory).await.unwrap();
    for number in 0..UNSHARDED_ENTRIES_MAX {
        client.create(dir, &format!("{number}"), FileKind::File).await.unwrap();
    }
    dir
}

#[test]
fn concurrent_renames_all_end() {
    for seed in 0..200 {
        let (world, client, Setup { dirs, .. }) = cluster(100 + seed);
        let rename = async |number: usize| {
            let (from, to) = (dirs[number % NODES], dirs[(number + 1 + number / NODES) % NODES]);
            let mode = if number.is_multiple_of(2) { RenameMode::Exchange } else { RenameMode::Replace };
            client.create_as(from, "x", new(FileKind::File), false, None).await.unwrap();
            if let Err(fault) = client.rename((from, "x"), (to, "x"), mode).await {
                assert_eq!(fault.errno, Errno::ENOENT, "a rename ended with {fault}");
            }
        };
        world.machine.run(futures_util::future::join_all((0..6).map(rename)));
        world.machine.finish();
        check(&world);
    }
}

#[test]
fn concurrent_moves_of_directories_make_no_loop() {
    for seed in 0..100 {
        let (world, client, Setup { dirs, .. }) = cluster(500 + seed);
        let names = world.machine.run(client.read_dir(InodeId::ROOT, 500)).unwrap();
        let name_of = |dir| {
            let entry = names.iter().find(|entry| entry.target.inode == dir).unwrap();
            String::from_utf8(entry.name.clone()).unwrap()
        };
        let move_below_next = async |number: usize| {
            let (moved, below) = (name_of(dirs[number]), dirs[(number + 1) % NODES]);
            let rename = client.rename((InodeId::ROOT, &moved), (below, "moved"), RenameMode::Replace);
            rename.await.is_ok()
        };
        let moved = world.machine.run(futures_util::future::join_all((0..NODES).map(move_below_next)));
        assert_eq!(moved.iter().filter(|moved| **moved).count(), NODES - 1);
        world.machine.finish();
        check(&world);
    }
}
