//! Exports a container as an archive that any system can unpack.
//!
//! Several threads read ahead, one writes. The order is depth first, a directory right before its contents: unpackers set a directory's
//! permissions when they leave it.

mod tar;
mod zip;

use self::tar::Tar;
use self::zip::Zip;
use crate::{Container, FileReader, IndexEntry, Node, Tally, shown};
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tameike_core::{Errno, Fault, FileKind, Result};

/// Entries that each thread has queued or prepared.
const AHEAD: usize = 4;
/// Larger files are read twice, verified and then copied, as an archive has the header of a file before its content.
const WHOLE_MAX: u64 = 1 << 20;

/// Format of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A tar archive.
    Tar,
    /// A zip archive.
    Zip,
}

/// Exports a container as an archive; `threads` threads read. Files that are damaged or not representable are left out and noted in `tally`,
/// as are lost properties.
///
/// # Errors
/// `EIO` if the archive cannot be written, or the index is damaged.
pub fn export(
    container: &Container,
    out: impl Write,
    format: Format,
    threads: usize,
    tally: &Tally,
) -> Result<()> {
    match format {
        Format::Tar => write(container, Tar::new(out), threads, tally),
        Format::Zip => write(container, Zip::new(out), threads, tally),
    }
}

/// An archive that is being written.
trait Archive {
    /// The reason why the archive cannot represent an item.
    fn refuses(&self, _: &Item) -> Option<&'static str> {
        None
    }
    /// The property of an item that the archive cannot represent, as a text that follows "path" and "paths".
    fn loses(&self, _: &Item) -> Option<&'static str> {
        None
    }
    /// Appends an item.
    fn put(&mut self, item: Item) -> io::Result<()>;
    /// Ends the archive.
    fn end(self) -> io::Result<()>;
}

/// A file for the archive.
struct Item {
    path: Vec<u8>,
    node: Node,
    content: Content,
}

/// Content of a file, read sequentially.
enum Content {
    Whole(io::Cursor<Vec<u8>>),
    Reader(Box<FileReader>, u64),
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Whole(bytes) => bytes.read(buffer),
            Self::Reader(reader, at) => {
                let count = reader.read_at(buffer, *at).map_err(io::Error::other)?;
                *at += count as u64;
                Ok(count)
            }
        }
    }
}

/// A reading thread: requested entries, and results in the same order.
struct Worker {
    wanted: SyncSender<IndexEntry>,
    done: Receiver<Result<Item>>,
}

fn write(container: &Container, mut archive: impl Archive, threads: usize, tally: &Tally) -> Result<()> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                let (wanted, entries) = sync_channel::<IndexEntry>(AHEAD);
                let (results, done) = sync_channel(AHEAD);
                scope.spawn(move || {
                    for entry in entries {
                        if results.send(prepare(container, &entry)).is_err() {
                            // The writer has failed.
                            break;
                        }
                    }
                });
                Worker { wanted, done }
            })
            .collect();
        let mut walk = container.walk_deep()?;
        let mut paths = std::collections::VecDeque::new();
        let (mut queued, mut written) = (0, 0);
        loop {
            while queued - written < workers.len() * AHEAD {
                let Some(entry) = walk.next().transpose()? else { break };
                paths.push_back(entry.path.clone());
                workers[queued % workers.len()].wanted.send(entry).map_err(|_| panicked())?;
                queued += 1;
            }
            let Some(path) = paths.pop_front() else { break };
            let item = workers[written % workers.len()].done.recv().map_err(|_| panicked())?;
            written += 1;
            put(&mut archive, &path, item, tally)?;
        }
        archive.end().map_err(|error| Fault::new(Errno::EIO, format!("cannot end the archive: {error}")))
    })
}

fn panicked() -> Fault {
    Fault::new(Errno::EIO, "a reading thread panicked")
}

fn put(archive: &mut impl Archive, path: &[u8], item: Result<Item>, tally: &Tally) -> Result<()> {
    let item = match item {
        Ok(item) => item,
        Err(fault) => {
            tally.note(path, &fault);
            return Ok(());
        }
    };
    if let Some(why) = archive.refuses(&item) {
        tally.note(path, &Fault::new(Errno::EINVAL, why));
        return Ok(());
    }
    if let Some(what) = archive.loses(&item) {
        tally.lose(what);
    }
    let size = item.node.size;
    archive.put(item).map_err(|error| {
        Fault::new(Errno::EIO, format!("cannot write {} to the archive: {error}", shown(path)))
    })?;
    tally.add_file();
    tally.add_bytes(size);
    Ok(())
}

/// Reads a small file, or verifies a large one.
fn prepare(container: &Container, entry: &IndexEntry) -> Result<Item> {
    let mut reader = container.open_entry(entry)?;
    let node = reader.node().clone();
    let path = entry.path.clone();
    if node.kind != FileKind::File {
        return Ok(Item { path, node, content: Content::Whole(io::Cursor::default()) });
    }
    if node.size <= WHOLE_MAX {
        let mut bytes = vec![0; node.size as usize];
        reader.read_at(&mut bytes, 0)?;
        return Ok(Item { path, node, content: Content::Whole(io::Cursor::new(bytes)) });
    }
    match container.check(entry)?.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(Item { path, node, content: Content::Reader(Box::new(reader), 0) }),
    }
}
