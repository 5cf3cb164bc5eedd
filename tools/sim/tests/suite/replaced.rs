//! Nodes repeatedly replace a file of the cache view by rename, while others open and read it. The shared file system reuses the inode
//! number of a replaced file for the next new one.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_agent::control::AgentMode;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Result, View};
use tameike_io::os::runtime::promise;
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::model::data::byte;
use tameike_sim::op::{Flags, Op};
use tameike_sim::world::{Canary, World, WorldConfig};

const SEEDS: u64 = 150;
const NODES: usize = 3;
/// Nodes of programs that replace the file, and of programs that read it.
const WRITERS: [usize; 2] = [1, 0];
const READERS: [usize; 4] = [0, 0, 2, 2];
const ROUNDS: u64 = 12;
const FILE: &str = "file";
const READ_SIZE: u32 = 1 << 20;

/// Tag and length of every file that had the name.
type Versions = Arc<Mutex<Vec<(u64, u32)>>>;

async fn call(
    world: &World,
    node: usize,
    op: Op,
    open: Option<tameike_client::vfs::HandleNumber>,
) -> Result<Output> {
    let (views, _) = world.views(node).expect("the node runs");
    let caller = world.caller(node, View::Cache).expect("the node runs");
    kernel::call(views.cache().expect("a view"), &caller, &op, open).await
}

async fn open(
    world: &World,
    node: usize,
    path: &str,
    flags: Flags,
) -> Result<tameike_client::vfs::HandleNumber> {
    let op = Op::Open { slot: 0, path: path.to_owned(), flags };
    let output = call(world, node, op, None).await?;
    let Output::Opened(handle, _) = output else { unreachable!("an open returned {output:?}") };
    Ok(handle)
}

async fn replace(world: &World, node: usize, versions: &Versions, tag: u64) -> Result<()> {
    let path = format!("{FILE}.{node}");
    // Sizes grow and shrink.
    let length = 12 * (1 + (tag * 2_654_435_761 % 4000) as u32);
    let flags = Flags { write: true, create: true, ..Flags::default() };
    let handle = open(world, node, &path, flags).await?;
    call(world, node, Op::Write { slot: 0, offset: 0, length, tag }, Some(handle)).await?;
    call(world, node, Op::Close { slot: 0 }, Some(handle)).await?;
    versions.lock().push((tag, length));
    let to = FILE.to_owned();
    call(world, node, Op::Rename { from: path, to, mode: RenameMode::Replace }, None).await.map(drop)
}

/// Opens and reads the file, and compares it with all versions.
async fn check_read(world: &World, node: usize, versions: &Versions) -> std::result::Result<(), String> {
    let wrong = |what: &str, fault: tameike_core::Fault| format!("node {node}: {what}: {fault}");
    let handle = match open(world, node, FILE, Flags::default()).await {
        Ok(handle) => handle,
        // The file was replaced repeatedly during the open. With a real kernel, the agent opens it.
        Err(fault) if fault.errno == Errno::ESTALE => return Ok(()),
        Err(fault) => return Err(wrong("open", fault)),
    };
    let mut bytes = Vec::new();
    loop {
        let op = Op::Read { slot: 0, offset: bytes.len() as u64, length: READ_SIZE };
        match call(world, node, op, Some(handle)).await {
            Ok(Output::Bytes(part)) if part.is_empty() => break,
            Ok(Output::Bytes(part)) => bytes.extend(part),
            Ok(output) => return Err(format!("a read returned {output:?}")),
            Err(fault) => return Err(wrong("read", fault)),
        }
    }
    call(world, node, Op::Close { slot: 0 }, Some(handle)).await.map_err(|fault| wrong("close", fault))?;
    let begins =
        |tag: u64| bytes.iter().enumerate().take(12).all(|(at, &found)| found == byte(tag, at as u64));
    let versions = versions.lock();
    let Some((tag, length)) = versions.iter().find(|(tag, _)| begins(*tag)) else {
        return Err(format!("node {node}: {} bytes that no process has written", bytes.len()));
    };
    let is_whole = bytes.len() == *length as usize
        && bytes.iter().enumerate().all(|(at, &found)| found == byte(*tag, at as u64));
    match is_whole {
        true => Ok(()),
        false => Err(format!("node {node}: file {tag}: the read returned {} of {length} bytes", bytes.len())),
    }
}

/// Runs a seed. Returns the number of times that the file was read, or the violation.
fn run(seed: u64, canary: Option<Canary>) -> std::result::Result<usize, String> {
    let world = World::new(WorldConfig { canary, ..WorldConfig::plain(seed, NODES) }, Countdown::default());
    let (at, reads) = (world.clone(), Arc::new(AtomicUsize::new(0)));
    let count = reads.clone();
    let found = world.simulation.clone().run(async move {
        at.start_all(AgentMode::Serve, false).await.expect("the agents start");
        let (versions, writing) = (Versions::default(), Arc::new(AtomicUsize::new(WRITERS.len())));
        replace(&at, 0, &versions, 1).await.expect("the first file");
        let mut ends = Vec::new();
        for node in WRITERS {
            let (world, versions, writing) = (at.clone(), versions.clone(), writing.clone());
            let (resolver, end) = promise();
            ends.push(end);
            at.runtime().spawn(async move {
                let mut ended = Ok(());
                for round in 0..ROUNDS {
                    let tag = 2 + round * NODES as u64 + node as u64;
                    let replaced = replace(&world, node, &versions, tag).await;
                    ended = ended.and(replaced.map_err(|fault| format!("node {node} replaces: {fault}")));
                }
                writing.fetch_sub(1, Ordering::Relaxed);
                resolver.resolve(ended);
            });
        }
        for node in READERS {
            let (world, versions, writing) = (at.clone(), versions.clone(), writing.clone());
            let (reads, (resolver, end)) = (count.clone(), promise());
            ends.push(end);
            at.runtime().spawn(async move {
                let mut ended = Ok(());
                while writing.load(Ordering::Relaxed) > 0 && ended.is_ok() {
                    ended = check_read(&world, node, &versions).await;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                resolver.resolve(ended);
            });
        }
        let mut found = Ok(());
        for end in ends {
            found = found.and(end.await);
        }
        found
    });
    found.map(|()| reads.load(Ordering::Relaxed)).map_err(|why| format!("seed {seed}: {why}"))
}

/// Appends to the file on node 1, closes it, and adds the size to `length`.
async fn grow(world: &World, length: &AtomicUsize, tag: u64) -> std::result::Result<(), String> {
    let wrong = |fault: tameike_core::Fault| fault.to_string();
    let handle = open(world, 1, FILE, Flags { write: true, ..Flags::default() }).await.map_err(wrong)?;
    let (offset, added) =
        (length.load(Ordering::Relaxed) as u64, 12 * (1 + (tag * 2_654_435_761 % 999) as u32));
    call(world, 1, Op::Write { slot: 0, offset, length: added, tag }, Some(handle)).await.map_err(wrong)?;
    call(world, 1, Op::Close { slot: 0 }, Some(handle)).await.map_err(wrong)?;
    length.fetch_add(added as usize, Ordering::Relaxed);
    Ok(())
}

async fn measure(world: &World, node: usize, length: &AtomicUsize) -> std::result::Result<(), String> {
    let wrong = |fault: tameike_core::Fault| fault.to_string();
    let least = length.load(Ordering::Relaxed);
    let handle = open(world, node, FILE, Flags::default()).await.map_err(wrong)?;
    let op = Op::Read { slot: 0, offset: 0, length: READ_SIZE };
    let Output::Bytes(bytes) = call(world, node, op, Some(handle)).await.map_err(wrong)? else {
        return Ok(());
    };
    call(world, node, Op::Close { slot: 0 }, Some(handle)).await.map_err(wrong)?;
    if bytes.len() < least {
        return Err(format!("node {node}: the read returned {} bytes of at least {least}", bytes.len()));
    }
    Ok(())
}

/// S2: a read after an open sees all bytes that a close published before it.
#[test]
fn a_growing_file_is_read_to_its_published_end() {
    for seed in 0..SEEDS {
        let world = World::new(WorldConfig::plain(seed, NODES), Countdown::default());
        let at = world.clone();
        let found = world.simulation.clone().run(async move {
            at.start_all(AgentMode::Serve, false).await.expect("the agents start");
            replace(&at, 0, &Versions::default(), 1).await.expect("the first file");
            let length = Arc::new(AtomicUsize::new(12 * (1 + (2_654_435_761_u64 % 4000) as usize)));
            let writing = Arc::new(AtomicUsize::new(1));
            let mut ends = Vec::new();
            for node in READERS.into_iter().chain(READERS) {
                let (world, length, writing) = (at.clone(), length.clone(), writing.clone());
                let (resolver, end) = promise();
                ends.push(end);
                at.runtime().spawn(async move {
                    let mut ended = Ok(());
                    while writing.load(Ordering::Relaxed) > 0 && ended.is_ok() {
                        ended = measure(&world, node, &length).await;
                    }
                    resolver.resolve(ended);
                });
            }
            let mut found = Ok(());
            for tag in 2..2 + 2 * ROUNDS {
                found = found.and(grow(&at, &length, tag).await);
            }
            writing.store(0, Ordering::Relaxed);
            for end in ends {
                found = found.and(end.await);
            }
            found
        });
        assert_eq!(found, Ok(()), "seed {seed}");
    }
}

/// S9a.
#[test]
fn a_file_that_nodes_replace_is_read_completely() {
    let reads: usize = (0..SEEDS).map(|seed| run(seed, None).unwrap_or_else(|why| panic!("{why}"))).sum();
    println!("{reads} reads");
    assert!(reads > 10 * SEEDS as usize, "{reads}");
}

#[test]
fn a_stale_size_of_a_reused_inode_number_is_detected() {
    let found = (0..SEEDS).find_map(|seed| run(seed, Some(Canary::OldAttributes)).err());
    assert!(found.is_some(), "not detected in {SEEDS} seeds");
}
