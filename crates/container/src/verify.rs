//! Verifies a container: every record of every lane, and every byte of every file.

use crate::{Container, IndexBuilder, IndexEntry, Superblock, Tally};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::SharedFs;

/// Result of a verification.
pub struct Verified {
    /// Damage of lanes, as messages: where, and what is wrong.
    pub damage: Vec<String>,
    /// Damaged files: path and reason.
    pub files: Vec<(Vec<u8>, String)>,
    /// Paths for which index and records differ; empty if there is no index.
    pub index: Vec<(Vec<u8>, String)>,
    /// True if the file `container` exists and is valid. Subfiles have copies of it.
    pub has_header: bool,
    /// True if there is an index. Without one, the packing process did not finish, or the index was removed.
    pub has_index: bool,
}

impl Verified {
    /// Returns true if no damage was found.
    pub fn is_whole(&self) -> bool {
        self.has_header && self.damage.is_empty() && self.files.is_empty() && self.index.is_empty()
    }
}

/// Verifies a whole container on `threads` threads. `rebuild` writes a new index from the valid records.
///
/// # Errors
/// `EINVAL` if this is not a container, and errors of the file system.
pub fn verify(fs: &Arc<dyn SharedFs>, threads: usize, rebuild: bool, tally: &Tally) -> Result<Verified> {
    let has_header = Superblock::is_file_whole(&**fs);
    // The index is opened before the records: an entry added in between is in the records only, and that is no damage.
    let indexed = match Container::open(fs.clone()) {
        Err(fault) if fault.errno == Errno::EIO => Err(fault),
        opened => Ok(opened?),
    };
    let mut container = Container::open_by_records(fs.clone())?;
    // A record that its writer was appending during the first scan is complete in the second.
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

/// Removes differences that a concurrent writer caused.
fn unless_added(
    indexed: &Container,
    by_records: &Container,
    fs: &Arc<dyn SharedFs>,
    mut wrong: Vec<(Vec<u8>, String)>,
) -> Result<Vec<(Vec<u8>, String)>> {
    if wrong.is_empty() || indexed.ends() == by_records.ends() {
        return Ok(wrong);
    }
    // Index and records were read at different times. Read both again, the index first: only differences found twice count.
    let again = Container::open(fs.clone())?;
    let records = Container::open_by_records(fs.clone())?;
    let entries: Vec<IndexEntry> = records.walk()?.collect::<Result<_>>()?;
    let still: BTreeSet<Vec<u8>> = compare(&again, &entries)?.into_iter().map(|(path, _)| path).collect();
    wrong.retain(|(path, _)| still.contains(path));
    Ok(wrong)
}

/// Removes files that a writer has changed or removed since the container was opened.
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
            let panicked = |_| Err(Fault::new(Errno::EIO, "a verifying thread panicked"));
            all.extend(worker.join().unwrap_or_else(panicked)?);
        }
        all.sort();
        Ok(all)
    })
}

/// Compares index and records; both are sorted.
fn compare(indexed: &Container, entries: &[IndexEntry]) -> Result<Vec<(Vec<u8>, String)>> {
    let mut wrong = Vec::new();
    if !indexed.has_index() {
        return Ok(wrong);
    }
    let mut listed = match indexed.walk() {
        Err(fault) if fault.errno == Errno::EIO => return Ok(vec![(Vec::new(), fault.to_string())]),
        walk => walk?.peekable(),
    };
    let mut there = entries.iter().peekable();
    loop {
        let order = match (listed.peek(), there.peek()) {
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
                let path = listed.next().and_then(Result::ok).map(|entry| entry.path).unwrap_or_default();
                wrong.push((path, "it is in the index, but not in the records".to_string()));
            }
            std::cmp::Ordering::Greater => {
                let path = there.next().map(|entry| entry.path.clone()).unwrap_or_default();
                wrong.push((path, "it is in the records, but not in the index".to_string()));
            }
            std::cmp::Ordering::Equal => {
                if let (Some(Ok(one)), Some(other)) = (listed.next(), there.next())
                    && one != *other
                {
                    wrong.push((
                        one.path,
                        "its version in the index differs from that in the records".to_string(),
                    ));
                }
            }
        }
    }
}
