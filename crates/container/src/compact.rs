//! Compaction: reclaims the space of replaced and removed files.
//!
//! 1. Copy all live entries to new subfiles.
//! 2. Replace the index by one of the new subfiles.
//! 3. Remove the old subfiles.
//!
//! A crash at any point loses nothing: entries that exist twice are identical.

use crate::Tally;
use crate::format::listing::Listing;
use crate::format::subfile::{self, Subfile};
use crate::writer::indexed::IndexedWriter;
use crate::{Codec, Container, FIRST_OF_HOSTS, IndexBuilder, IndexEntry, LaneEnd, LaneWriter, Superblock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{Access, SharedFs};

/// Space that a container takes on its file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Before compaction.
    pub before: u64,
    /// After compaction.
    pub after: u64,
}

/// Rewrites a container without replaced and removed files, on `threads` threads. No process may write to it meanwhile; readers must reopen
/// it.
///
/// # Errors
/// `EBUSY` if a process writes to it, `EIO` if a part of it is damaged (nothing is changed), and errors of the file system.
pub fn compact(fs: &Arc<dyn SharedFs>, codec: Codec, threads: usize, tally: &Tally) -> Result<Compacted> {
    let rewritten = rewrite(fs, codec, threads, tally)?;
    rewritten.old.iter().try_for_each(|number| fs.unlink(&subfile::name(*number)))?;
    fs.sync_dir(b"")?;
    // Without the old subfiles, removed entries cannot reappear: the removals are not needed any more.
    fs.unlink(&subfile::name(rewritten.tombs))?;
    Ok(rewritten.space)
}

/// A container whose old and new subfiles both exist.
pub(crate) struct Rewritten {
    /// Subfiles to remove.
    pub(crate) old: Vec<u32>,
    /// The subfile that records removals while old subfiles exist.
    pub(crate) tombs: u32,
    space: Compacted,
    /// Holds the locks of all lanes of the old subfiles, so that no writer begins one.
    _closed: Vec<Subfile>,
}

/// Copies all live entries to new subfiles, and writes an index of these.
pub(crate) fn rewrite(
    fs: &Arc<dyn SharedFs>,
    codec: Codec,
    threads: usize,
    tally: &Tally,
) -> Result<Rewritten> {
    let superblock = Superblock::read(&**fs)?;
    let numbers = Listing::of(&**fs)?.numbers;
    let open = |number: u32, access| Subfile::open(&**fs, superblock, number, access);
    let old = numbers.iter().map(|number| open(*number, Access::Write)).collect::<Result<Vec<_>>>()?;
    for subfile in &old {
        if !subfile.try_close()? {
            return Err(Fault::new(
                Errno::EBUSY,
                "a process writes to this container; compact it after that process has ended",
            ));
        }
    }
    let container = Container::open_by_records(fs.clone())?;
    if let Some(damage) = container.damage().first() {
        let message = format!(
            "this container is damaged ({}, at {}: {}): list all damage with `tameike agg verify`, save the rest with `tameike agg extract`",
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
    let new = (fresh.first..fresh.tombs()).map(|number| open(number, Access::Read));
    let space = Compacted { before, after: space(&new.collect::<Result<Vec<_>>>()?)? };
    Ok(Rewritten { old: numbers, tombs: fresh.tombs(), space, _closed: old })
}

fn space(subfiles: &[Subfile]) -> Result<u64> {
    subfiles.iter().map(|subfile| Ok(subfile.file().stat()?.blocks * 512)).sum()
}

/// The new subfiles.
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

    /// The subfile that records removals while old subfiles exist.
    fn tombs(&self) -> u32 {
        self.first + self.files()
    }

    fn remove(&self, old: &[u32]) {
        for number in (self.first..=self.tombs()).filter(|number| !old.contains(number)) {
            // It may not have been created.
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
            let panicked = |_| Err(Fault::new(Errno::EIO, "a compacting thread panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
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

/// Copies an entry with its version.
fn copy(container: &Container, entry: &IndexEntry, writer: &mut IndexedWriter<'_>) -> Result<()> {
    if container.external_identity(entry)?.is_some() {
        // External content stays in its file.
        return writer.put(&entry.path, entry.version, container.node(entry)?);
    }
    let mut reader = container.open_entry(entry)?;
    let node = reader.node().clone();
    match node.kind {
        FileKind::File => writer.put_file(&entry.path, entry.version, node, &mut reader)?,
        _ => writer.put(&entry.path, entry.version, node).map(Ok)?,
    }
}
