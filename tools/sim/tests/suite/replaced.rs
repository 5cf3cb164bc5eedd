//! Nodes repeatedly replace a file of the cache view by rename, while others open and read it. The shared file system reuses the inode
//! number of a replaced file for the next new one.

use super::programs::{self, CLOSE, bytes_of, on_cluster, opened, write};
use parking_lot::Mutex;
use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_client::vfs::HandleNumber;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Fault, Result, View};
use tameike_io::os::runtime::{Promise, promise};
use tameike_sim::kernel::Output;
use tameike_sim::op::{Flags, Op};
use tameike_sim::pattern_byte;
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

async fn call(world: &World, node: usize, op: Op, open: Option<HandleNumber>) -> Result<Output> {
    programs::call(world, View::Cache, node, op, open).await
}

async fn open(world: &World, node: usize, path: &str, flags: Flags) -> Result<HandleNumber> {
    Ok(opened(world, View::Cache, node, path, flags).await?.0)
}

/// The length of the file of a tag. Sizes grow and shrink.
fn length_of(tag: u64, steps: u64) -> u32 {
    12 * (1 + (tag * 2_654_435_761 % steps) as u32)
}

async fn replace(world: &World, node: usize, versions: &Versions, tag: u64) -> Result<()> {
    let path = format!("{FILE}.{node}");
    let length = length_of(tag, 4000);
    let handle = open(world, node, &path, Flags::CREATE).await?;
    call(world, node, write(0, length, tag), Some(handle)).await?;
    call(world, node, CLOSE, Some(handle)).await?;
    versions.lock().push((tag, length));
    call(world, node, Op::rename(&path, FILE, RenameMode::Replace), None).await.map(drop)
}

/// Opens and reads the file, and compares it with all versions.
async fn check_read(world: &World, node: usize, versions: &Versions) -> StdResult<(), String> {
    let wrong = |what: &str, fault: Fault| format!("node {node}: {what}: {fault}");
    let handle = match open(world, node, FILE, Flags::READ).await {
        Ok(handle) => handle,
        // The file was replaced repeatedly during the open. With a real kernel, the agent opens it.
        Err(fault) if fault.errno == Errno::ESTALE => return Ok(()),
        Err(fault) => return Err(wrong("open", fault)),
    };
    let mut bytes = Vec::new();
    loop {
        let range = (bytes.len() as u64, READ_SIZE);
        let part = bytes_of(world, View::Cache, node, handle, range).await;
        let part = part.map_err(|fault| wrong("read", fault))?;
        if part.is_empty() {
            break;
        }
        bytes.extend(part);
    }
    call(world, node, CLOSE, Some(handle)).await.map_err(|fault| wrong("close", fault))?;
    let is_of =
        |tag: u64, bytes: &[u8]| bytes.iter().zip(0..).all(|(&found, at)| found == pattern_byte(tag, at));
    let versions = versions.lock();
    let Some((tag, length)) = versions.iter().find(|(tag, _)| is_of(*tag, &bytes[..bytes.len().min(12)]))
    else {
        return Err(format!("node {node}: {} bytes that no process has written", bytes.len()));
    };
    match bytes.len() == *length as usize && is_of(*tag, &bytes) {
        true => Ok(()),
        false => Err(format!("node {node}: file {tag}: the read returned {} of {length} bytes", bytes.len())),
    }
}

/// Runs `check` on each of these nodes repeatedly until no program writes.
fn check_while_writing<F>(
    at: &Arc<World>,
    nodes: impl IntoIterator<Item = usize>,
    writing: &Arc<AtomicUsize>,
    check: impl Fn(Arc<World>, usize) -> F + Clone + Send + 'static,
) -> Vec<Promise<StdResult<(), String>>>
where
    F: Future<Output = StdResult<(), String>> + Send,
{
    let begin = |node| {
        let (world, writing, check) = (at.clone(), writing.clone(), check.clone());
        let (resolver, end) = promise();
        at.runtime().spawn(async move {
            let mut ended = Ok(());
            while writing.load(Ordering::Relaxed) > 0 && ended.is_ok() {
                ended = check(world.clone(), node).await;
            }
            resolver.resolve(ended);
        });
        end
    };
    nodes.into_iter().map(begin).collect()
}

/// Runs a seed. Returns the number of times that the file was read, or the violation.
fn run(seed: u64, canary: Option<Canary>) -> StdResult<usize, String> {
    let reads = Arc::new(AtomicUsize::new(0));
    let config = WorldConfig { canary, ..WorldConfig::plain(seed, NODES) };
    let found = on_cluster(config, async |at| {
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
        let count = reads.clone();
        ends.extend(check_while_writing(&at, READERS, &writing, move |world, node| {
            let (versions, count) = (versions.clone(), count.clone());
            async move {
                let read = check_read(&world, node, &versions).await;
                count.fetch_add(1, Ordering::Relaxed);
                read
            }
        }));
        let mut found = Ok(());
        for end in ends {
            found = found.and(end.await);
        }
        found
    });
    found.map(|()| reads.load(Ordering::Relaxed)).map_err(|why| format!("seed {seed}: {why}"))
}

/// Appends to the file on node 1, closes it, and adds the size to `length`.
async fn grow(world: &World, length: &AtomicUsize, tag: u64) -> Result<()> {
    let handle = open(world, 1, FILE, Flags::WRITE).await?;
    let (offset, added) = (length.load(Ordering::Relaxed) as u64, length_of(tag, 999));
    call(world, 1, write(offset, added, tag), Some(handle)).await?;
    call(world, 1, CLOSE, Some(handle)).await?;
    length.fetch_add(added as usize, Ordering::Relaxed);
    Ok(())
}

async fn read_length(world: &World, node: usize) -> Result<usize> {
    let handle = open(world, node, FILE, Flags::READ).await?;
    let bytes = bytes_of(world, View::Cache, node, handle, (0, READ_SIZE)).await?;
    call(world, node, CLOSE, Some(handle)).await?;
    Ok(bytes.len())
}

/// S2: a read after an open sees all bytes that a close published before it.
#[test]
fn a_growing_file_is_read_to_its_published_end() {
    let wrong = |fault: Fault| fault.to_string();
    for seed in 0..SEEDS {
        let found = on_cluster(WorldConfig::plain(seed, NODES), async |at| {
            replace(&at, 0, &Versions::default(), 1).await.expect("the first file");
            let length = Arc::new(AtomicUsize::new(length_of(1, 4000) as usize));
            let writing = Arc::new(AtomicUsize::new(1));
            let known = length.clone();
            let ends = check_while_writing(&at, [READERS, READERS].concat(), &writing, move |world, node| {
                let least = known.load(Ordering::Relaxed);
                async move {
                    match read_length(&world, node).await.map_err(wrong)? {
                        read if read >= least => Ok(()),
                        read => {
                            Err(format!("node {node}: the read returned {read} bytes of at least {least}"))
                        }
                    }
                }
            });
            let mut found = Ok(());
            for tag in 2..2 + 2 * ROUNDS {
                found = found.and(grow(&at, &length, tag).await.map_err(wrong));
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
