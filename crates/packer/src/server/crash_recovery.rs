//! Crash recovery of a container: what a packer that did not finish has left in page caches and in its journal.

use super::entry_log::EntryLog;
use super::journal::{Earlier, JournalEntry, pieces_of};
use crate::CONTAINER;
use std::collections::BTreeMap;
use tameike_container::format::external::Identity;
use tameike_container::format::subfile::Subfile;
use tameike_container::{Content, Entry, Listing, Node, Superblock};
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Fault, Result};
use tameike_io::shared::{Access, SharedFs};

/// What earlier incarnations have left in a container.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interrupted {
    /// One of them did not finish.
    pub was_interrupted: bool,
    /// A sync has failed: entries that can be read may not be durable.
    pub is_doubtful: bool,
}

/// Syncs the subfiles of incarnations that did not finish, and drops their pages. After a failed fsync the page cache has data that the
/// disk lacks, and an index of such data would hide what the disk has. A failed sync is only logged: data that it loses is not read.
pub fn sync_interrupted(fs: &dyn SharedFs) -> Result<Interrupted> {
    let superblock = Superblock::read(fs)?;
    let mut found = Interrupted::default();
    for number in Listing::of(fs)?.numbers {
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        if subfile.lanes()?.iter().any(|lane| lane.is_open()) {
            found.was_interrupted = true;
            if let Err(fault) = subfile.file().sync() {
                found.is_doubtful = true;
                log::warn!(
                    "fsync of files packed by an interrupted job: {fault}. Files that can be read are kept"
                );
            }
            subfile.file().forget_pages()?;
        }
    }
    Ok(found)
}

/// Names that an earlier incarnation has changed, and that cannot be recovered.
#[derive(Default)]
pub struct LostNames {
    /// The numbers of their files. An entry that another tool packed has none.
    numbers: Vec<Option<u64>>,
    paths: Vec<Vec<u8>>,
}

impl LostNames {
    fn add(&mut self, path: &[u8], node: Option<&Node>) {
        self.numbers.extend(node.map(|node| Identity::decode(node).map(|identity| identity.number)));
        self.paths.push(path.to_vec());
    }

    /// Whether a file may be one of them: it may be intact under another name.
    fn may_have(&self, number: u64) -> bool {
        self.numbers.iter().any(|lost| lost.is_none_or(|lost| lost == number))
    }

    /// The error that reports them; none where nothing is lost.
    pub fn fault(&self) -> Option<Fault> {
        let first = String::from_utf8_lossy(self.paths.first()?);
        let (container, count) = (String::from_utf8_lossy(CONTAINER), self.paths.len());
        Some(Fault::io(format!(
            "{container}: {count} names that an interrupted job changed cannot be recovered, {first} among them: the container was \
             compacted or damaged since. `tameike recover --discard` gives these changes up"
        )))
    }
}

/// Writes the journaled entries that a container has lost.
pub fn put_lost(log: &mut EntryLog, earlier: Earlier, is_doubtful: bool) -> Result<LostNames> {
    let Earlier { noted, was_compacted } = earlier;
    // Of several entries of a path the last one counts.
    let last: BTreeMap<_, _> = noted.into_iter().map(|noted| (noted.entry.path.clone(), noted)).collect();
    let (mut files, mut removed, mut lost) = (Vec::new(), Vec::new(), LostNames::default());
    for (path, noted) in last {
        match noted.entry.node.is_some() {
            true if is_file_lost(log, &noted, was_compacted, is_doubtful)? => {
                match lost_node(log, &noted, was_compacted)? {
                    Some(node) => files.push((path, node)),
                    None => lost.add(&path, noted.entry.node.as_ref()),
                }
            }
            false if is_removal_lost(log, &noted.entry)? => removed.push(path),
            _ => {}
        }
    }
    for (path, node) in files {
        put(log, &path, Some(node))?;
    }
    for path in removed {
        if may_remove(log, &path, was_compacted, &lost) {
            put(log, &path, None)?;
        } else {
            lost.add(&path, None);
        }
    }
    Ok(lost)
}

fn put(log: &mut EntryLog, path: &[u8], node: Option<Node>) -> Result<()> {
    log.begin()?;
    log.retry_and_reserve()?;
    log.put(path, node).map(drop)
}

/// Whether the container lacks a file's entry, or a part of it, and has no later entry of the path.
fn is_file_lost(
    log: &EntryLog,
    noted: &JournalEntry,
    was_compacted: bool,
    is_doubtful: bool,
) -> Result<bool> {
    let JournalEntry { entry, lane, address, .. } = noted;
    let container = log.container();
    let version = container.version(&entry.path)?;
    if version >= entry.version {
        return Ok(is_doubtful && version == entry.version);
    }
    if was_compacted || !container.has_put(entry, *lane, *address)? {
        return Ok(true);
    }
    let Some(node) = &entry.node else { return Ok(false) };
    for piece in pieces_of(node) {
        if !container.is_whole(node, piece)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an older file is at a path where one was removed.
fn is_removal_lost(log: &EntryLog, entry: &Entry) -> Result<bool> {
    let found = log.container().find(&entry.path)?;
    Ok(found.is_some_and(|found| found.version < entry.version))
}

/// Whether the entry at a path is certainly the one that was removed, and no lost file needs it.
fn may_remove(log: &mut EntryLog, path: &[u8], was_compacted: bool, lost: &LostNames) -> bool {
    // A note of the packer is no file.
    let is_unneeded = |stat: PackedStat| !was_compacted && !lost.may_have(stat.number);
    log.entry(path).is_err() || log.stat(path).is_ok_and(is_unneeded)
}

/// The node of a lost file, without the content that was lost before it was durable: the stores of the job have that content, and flush
/// it again. None where durable content cannot be read either.
fn lost_node(log: &EntryLog, noted: &JournalEntry, was_compacted: bool) -> Result<Option<Node>> {
    let JournalEntry { entry: Entry { node, .. }, unsafe_pieces, .. } = noted;
    let Some(mut node) = node.clone() else { return Ok(None) };
    let mut intact = Vec::new();
    for (number, piece) in (0..).zip(pieces_of(&node)) {
        let was_durable = !unsafe_pieces.contains(&number);
        if !was_compacted && log.container().is_whole(&node, piece)? {
            intact.push(*piece);
        } else if was_durable {
            return Ok(None);
        }
    }
    if let Content::Extents(pieces) = &mut node.content {
        *pieces = intact;
    }
    Ok(Some(node))
}
