//! Proving a container: every record of every lane, and every byte of every file.

use crate::Tally;
use crate::{Container, IndexBuilder, IndexEntry, Superblock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::SharedFs;

/// What was found.
pub struct Verified {
    /// Damage of lanes, in words for a person: where, and what is wrong.
    pub damage: Vec<String>,
    /// Files that are damaged: path and why.
    pub files: Vec<(Vec<u8>, String)>,
    /// Paths that the index has otherwise than the records: none where there is no index.
    pub index: Vec<(Vec<u8>, String)>,
    /// Whether the file `container` is there and whole. Its subfiles tell the same.
    pub has_header: bool,
    /// Whether there is an index: without one, who packed it did not come to its end, or somebody has removed it.
    pub has_index: bool,
}

impl Verified {
    /// Whether all is as it was written.
    pub fn is_whole(&self) -> bool {
        self.has_header && self.damage.is_empty() && self.files.is_empty() && self.index.is_empty()
    }
}

/// Goes through all of a container, by so many threads. With `rebuild`, a new index is made of the records that are there.
///
/// # Errors
/// `EINVAL` when it is no container, and what the file system says.
pub fn verify(fs: &Arc<dyn SharedFs>, threads: usize, rebuild: bool, tally: &Tally) -> Result<Verified> {
    let has_header = Superblock::is_file_whole(&**fs);
    // Before the records: an entry that somebody adds in between is in the records alone, and that is no damage.
    let indexed = match Container::open(fs.clone()) {
        Err(fault) if fault.errno == Errno::EIO => Err(fault),
        opened => Ok(opened?),
    };
    let mut container = Container::open_by_records(fs.clone())?;
    // A record that its writer was putting when it was read is whole when it is read again.
    if !container.damage().is_empty() {
        container.refresh()?;
    }
    let damage = container
        .damage()
        .iter()
        .map(|damage| format!("{}, at {}: {}", damage.lane, damage.address, damage.why))
        .collect::<Vec<_>>();
    let entries: Vec<IndexEntry> = container.walk()?.collect::<Result<_>>()?;
    let files = check_files(&container, &entries, threads, tally)?;
    let (index, has_index) = match indexed {
        Ok(indexed) => {
            let wrong = compare(&indexed, &entries)?;
            (unless_added(&indexed, &container, fs, wrong)?, indexed.has_index())
        }
        Err(fault) => (vec![(Vec::new(), fault.to_string())], true),
    };
    if rebuild {
        container.superblock().restore(&**fs)?;
        let mut builder = IndexBuilder::new(fs.clone(), container.superblock().container)?;
        entries.into_iter().try_for_each(|entry| builder.add(entry))?;
        builder.finish(&container.ends())?;
    }
    let files = unless_changed(&mut container, files);
    Ok(Verified { damage, files, index, has_header, has_index })
}

/// Leaves out paths that somebody has put, changed or removed while the check ran: the records tell now what they did not tell before.
fn unless_added(
    indexed: &Container,
    by_records: &Container,
    fs: &Arc<dyn SharedFs>,
    mut wrong: Vec<(Vec<u8>, String)>,
) -> Result<Vec<(Vec<u8>, String)>> {
    if wrong.is_empty() || indexed.ends() == by_records.ends() {
        return Ok(wrong);
    }
    // Both looked at different moments: they are asked again, the index first, and only what both times differs is wrong.
    let again = Container::open(fs.clone())?;
    let records = Container::open_by_records(fs.clone())?;
    let entries: Vec<IndexEntry> = records.walk()?.collect::<Result<_>>()?;
    let still: BTreeSet<Vec<u8>> = compare(&again, &entries)?.into_iter().map(|(path, _)| path).collect();
    wrong.retain(|(path, _)| still.contains(path));
    Ok(wrong)
}

/// Leaves out what a writer has changed or removed since the container was opened, where that can be seen.
pub(crate) fn unless_changed(
    container: &mut Container,
    mut files: Vec<(Vec<u8>, String)>,
) -> Vec<(Vec<u8>, String)> {
    let version = |container: &Container, path: &[u8]| {
        container.find(path).map(|entry| entry.map(|entry| entry.version)).ok()
    };
    let before: Vec<_> = files.iter().map(|(path, _)| version(container, path)).collect();
    if files.is_empty() || container.refresh().is_err() {
        return files;
    }
    let mut before = before.into_iter();
    files.retain(|(path, _)| {
        let (before, now) = (before.next().flatten(), version(container, path));
        before.is_none() || now.is_none() || before == now
    });
    files
}

fn check_files(
    container: &Container,
    entries: &[IndexEntry],
    threads: usize,
    tally: &Tally,
) -> Result<Vec<(Vec<u8>, String)>> {
    let next = AtomicUsize::new(0);
    let check = || -> Result<Vec<(Vec<u8>, String)>> {
        let mut damaged = Vec::new();
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let faults = container.check(entry)?;
            damaged.extend(faults.iter().map(|fault| (entry.path.clone(), fault.to_string())));
            tally.add_file();
            tally.add_bytes(entry.node.map_or(0, |node| node.size));
        }
        Ok(damaged)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(check)).collect();
        let mut all = Vec::new();
        for worker in workers {
            let panicked = |_| Err(Fault::new(Errno::EIO, "a thread that verifies has ended with a panic"));
            all.extend(worker.join().unwrap_or_else(panicked)?);
        }
        all.sort();
        Ok(all)
    })
}

/// What an index has otherwise than the records, both in their order.
fn compare(indexed: &Container, entries: &[IndexEntry]) -> Result<Vec<(Vec<u8>, String)>> {
    let mut wrong = Vec::new();
    if !indexed.has_index() {
        return Ok(wrong);
    }
    let mut told = match indexed.walk() {
        Err(fault) if fault.errno == Errno::EIO => return Ok(vec![(Vec::new(), fault.to_string())]),
        told => told?.peekable(),
    };
    let mut there = entries.iter().peekable();
    loop {
        let order = match (told.peek(), there.peek()) {
            (None, None) => return Ok(wrong),
            (Some(Err(fault)), _) => {
                wrong.push((Vec::new(), fault.to_string()));
                return Ok(wrong);
            }
            (Some(Ok(_)), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(Ok(one)), Some(other)) => crate::compare_paths(&one.path, &other.path),
        };
        match order {
            std::cmp::Ordering::Less => {
                let path = told.next().and_then(Result::ok).map(|entry| entry.path).unwrap_or_default();
                wrong.push((path, "the index has it, and no record".to_string()));
            }
            std::cmp::Ordering::Greater => {
                let path = there.next().map(|entry| entry.path.clone()).unwrap_or_default();
                wrong.push((path, "a record has it, and not the index".to_string()));
            }
            std::cmp::Ordering::Equal => {
                if let (Some(Ok(one)), Some(other)) = (told.next(), there.next())
                    && one != *other
                {
                    wrong.push((one.path, "the index has another version than the records".to_string()));
                }
            }
        }
    }
}
