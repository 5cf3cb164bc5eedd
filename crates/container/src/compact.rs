//! Taking back the space of what was replaced or removed in a container.
//!
//! All that is there is put into new subfiles, an index of these takes the place of the old one, and then the old subfiles go. Whatever ends this
//! in the middle, the container has all it had: what is there twice is the same.

use crate::Tally;
use crate::format::listing::Listing;
use crate::format::subfile;
use crate::format::subfile::Subfile;
use crate::writer::indexed::IndexedWriter;
use crate::{Codec, Container, FIRST_OF_HOSTS, IndexBuilder, IndexEntry, LaneEnd, LaneWriter, Superblock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{Access, SharedFs};

/// What a container took on its file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Before.
    pub before: u64,
    /// Now.
    pub after: u64,
}

/// Rewrites a container without what was replaced or removed, by so many threads. Nobody must write to it meanwhile; who has it open for
/// reading opens it again.
///
/// # Errors
/// `EBUSY` when a process writes to it, `EIO` when something of it is damaged: then nothing is changed; and what the file system says.
pub fn compact(fs: &Arc<dyn SharedFs>, codec: Codec, threads: usize, tally: &Tally) -> Result<Compacted> {
    let rewritten = rewrite(fs, codec, threads, tally)?;
    rewritten.old.iter().try_for_each(|number| fs.unlink(&subfile::name(*number)))?;
    fs.sync_dir(b"")?;
    // What was removed cannot come back any more.
    fs.unlink(&subfile::name(rewritten.tombs))?;
    Ok(rewritten.space)
}

/// A container that has everything twice.
pub(crate) struct Rewritten {
    /// Subfiles that are not needed any more.
    pub(crate) old: Vec<u32>,
    /// The one that tells what was removed, for as long as there are old ones.
    pub(crate) tombs: u32,
    space: Compacted,
    /// Nobody begins a lane in them.
    _closed: Vec<Subfile>,
}

/// Puts all that is there into new subfiles, and makes an index of these.
pub(crate) fn rewrite(
    fs: &Arc<dyn SharedFs>,
    codec: Codec,
    threads: usize,
    tally: &Tally,
) -> Result<Rewritten> {
    let superblock = Superblock::read(&**fs)?;
    let numbers = Listing::of(&**fs)?.numbers;
    let old: Result<Vec<_>> =
        numbers.iter().map(|number| Subfile::open(&**fs, superblock, *number, Access::Write)).collect();
    let old = old?;
    for subfile in &old {
        if !subfile.try_close()? {
            return Err(Fault::new(
                Errno::EBUSY,
                "a process writes to this container: compact it when that has ended",
            ));
        }
    }
    let container = Container::open_by_records(fs.clone())?;
    if let Some(damage) = container.damage().first() {
        let message = format!(
            "this container is damaged ({}, at {}: {}): `tameike agg verify` names all, `tameike agg extract` brings back the rest",
            damage.lane, damage.address, damage.why
        );
        return Err(Fault::new(Errno::EIO, message));
    }
    let before = space(&old)?;
    let first = numbers.iter().rev().find(|number| **number < FIRST_OF_HOSTS).map_or(0, |last| last + 1);
    let fresh = Fresh { fs: fs.clone(), superblock, first, threads: threads.clamp(1, 1024) as u32, codec };
    let copied = fresh.copy(&container, tally);
    if copied.is_err() {
        fresh.remove(&numbers);
    }
    copied?;
    let new: Result<Vec<_>> = (fresh.first..fresh.tombs())
        .map(|number| Subfile::open(&**fs, superblock, number, Access::Read))
        .collect();
    let space = Compacted { before, after: space(&new?)? };
    Ok(Rewritten { old: numbers, tombs: fresh.tombs(), space, _closed: old })
}

fn space(subfiles: &[Subfile]) -> Result<u64> {
    subfiles.iter().map(|subfile| Ok(subfile.file().stat()?.blocks * 512)).sum()
}

/// The subfiles that take the place of the old ones.
struct Fresh {
    fs: Arc<dyn SharedFs>,
    superblock: Superblock,
    first: u32,
    threads: u32,
    codec: Codec,
}

impl Fresh {
    fn files(&self) -> u32 {
        self.threads.div_ceil(self.superblock.geometry.lanes)
    }

    /// The subfile that tells what was removed, for as long as there are old ones.
    fn tombs(&self) -> u32 {
        self.first + self.files()
    }

    fn remove(&self, old: &[u32]) {
        for number in (self.first..=self.tombs()).filter(|number| !old.contains(number)) {
            // It may not have come to be.
            let _ = self.fs.unlink(&subfile::name(number));
        }
    }

    fn copy(&self, container: &Container, tally: &Tally) -> Result<()> {
        for number in self.first..=self.tombs() {
            Subfile::create(&*self.fs, self.superblock, number, "")?;
        }
        let mut tombs = self.writer(self.tombs(), 0)?;
        container
            .removed()
            .try_for_each(|entry| tombs.put_entry(&entry.path, entry.version, None, &[]).map(drop))?;
        tombs.finish()?;
        let entries: Vec<_> = container.walk()?.collect::<Result<_>>()?;
        let index = Mutex::new(IndexBuilder::new(self.fs.clone(), self.superblock.container)?);
        let next = AtomicUsize::new(0);
        let ends: Result<Vec<Vec<LaneEnd>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (entries, next, index) = (&entries, &next, &index);
                    scope.spawn(move || -> Result<Vec<LaneEnd>> {
                        let lane = self.writer(self.first + thread % self.files(), thread / self.files())?;
                        let mut writer = IndexedWriter::new(lane, index, tally);
                        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                            copy(container, entry, &mut writer)?;
                            tally.add_file();
                        }
                        writer.finish()
                    })
                })
                .collect();
            let died = |_| Err(Fault::new(Errno::EIO, "a thread that compacts has ended with a panic"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        });
        self.fs.sync_dir(b"")?;
        index.into_inner().finish(&ends?.concat())
    }

    fn writer(&self, number: u32, lane: u32) -> Result<LaneWriter> {
        let subfile = Subfile::open(&*self.fs, self.superblock, number, Access::Write)?;
        let claimed = LaneWriter::claim(subfile, self.superblock, lane, false)?;
        let mut writer =
            claimed.ok_or_else(|| Fault::new(Errno::EBUSY, "a process writes to this container"))?;
        writer.set_codec(self.codec)?;
        Ok(writer)
    }
}

/// Puts a path as it is, with its version.
fn copy(container: &Container, entry: &IndexEntry, writer: &mut IndexedWriter<'_>) -> Result<()> {
    if container.outside_of(entry)?.is_some() {
        // Its content stays where it is.
        return writer.put(&entry.path, entry.version, container.node(entry)?);
    }
    let mut reader = container.open_entry(entry)?;
    let node = reader.node().clone();
    match node.kind {
        FileKind::File => writer.put_file(&entry.path, entry.version, node, &mut reader)?,
        _ => writer.put(&entry.path, entry.version, node).map(Ok)?,
    }
}
