//! Lives of packers that did not end well, as a later one finds what they have left.

use super::journal::{Earlier, Journal, Noted, pieces_of};
use super::store::Store;
use crate::CONTAINER;
use std::collections::BTreeMap;
use tameike_container::Listing;
use tameike_container::format::external::Identity;
use tameike_container::format::subfile::Subfile;
use tameike_container::{Content, Entry, Node, Superblock};
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Fault, Result};
use tameike_io::shared::{Access, SharedFs};

/// What earlier lives have left in a container.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interrupted {
    /// One of them did not end well.
    pub was_cut_off: bool,
    /// What is read may not be on the disk.
    pub is_doubtful: bool,
}

/// What lives of packers that did not end well have left in memory of this machine goes to the file system, or is not there: after a
/// failed fsync memory has what the disk lacks, and an index that tells of that would hide what the disk has.
///
/// # Errors
/// What the file system says, but for an fsync that fails: what is lost by that is not read.
pub fn sync_interrupted(fs: &dyn SharedFs) -> Result<Interrupted> {
    let superblock = Superblock::read(fs)?;
    let mut found = Interrupted::default();
    for number in Listing::of(fs)?.numbers {
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        if subfile.lanes()?.iter().any(|lane| lane.life != 0 && !lane.is_finished) {
            found.was_cut_off = true;
            if let Err(fault) = subfile.file().sync() {
                found.is_doubtful = true;
                log::warn!(
                    "what was packed by a job that was cut off is believed where it can be read: {fault}"
                );
            }
            subfile.file().forget_pages()?;
        }
    }
    Ok(found)
}

/// Names that an earlier life has changed, and that cannot be brought back.
#[derive(Default)]
struct NotBack {
    /// Numbers of their files, where they have some.
    numbers: Vec<Option<u64>>,
    paths: Vec<Vec<u8>>,
}

impl NotBack {
    fn add(&mut self, path: &[u8], node: Option<&Node>) {
        self.numbers.extend(node.map(|node| Identity::told(node).map(|identity| identity.number)));
        self.paths.push(path.to_vec());
    }

    /// Whether a file may be one of them: under another name it may be whole.
    fn may_have(&self, number: u64) -> bool {
        self.numbers.iter().any(|not_back| not_back.is_none_or(|not_back| not_back == number))
    }

    fn fault(&self) -> Option<Fault> {
        let first = String::from_utf8_lossy(self.paths.first()?);
        let (container, count) = (String::from_utf8_lossy(CONTAINER), self.paths.len());
        Some(Fault::io(format!(
            "{container}: {count} names that were changed before the job was cut off could not be brought back, {first} among them: the \
             container was compacted or damaged since. `tameike recover --discard` gives these changes up"
        )))
    }
}

impl Store {
    /// Puts again what an earlier life of this packer has noted and the container has lost. Where that cannot be, nothing more is put: it
    /// stays noted for another life.
    pub(crate) fn put_lost(&mut self, earlier: Earlier, is_doubtful: bool) {
        if earlier.noted.is_empty() {
            return;
        }
        // All of it is noted already.
        let journal = self.journal.take();
        match self.try_put_lost(earlier, is_doubtful) {
            Ok(not_back) => self.not_back = not_back.fault(),
            Err(fault) => {
                let why = format!(
                    "{}: names that the file system has lost could not be put again: {fault}",
                    String::from_utf8_lossy(CONTAINER)
                );
                self.failure = Some(Fault::new(fault.errno, why));
            }
        }
        // What is still needed stays as it is.
        self.journal = journal.filter(|_| self.not_back.is_none() && self.failure.is_none());
        if let Some(Err(fault)) = self.journal.as_mut().map(Journal::clear) {
            self.failure = Some(fault);
        }
    }

    fn try_put_lost(&mut self, earlier: Earlier, is_doubtful: bool) -> Result<NotBack> {
        let Earlier { noted, was_compacted } = earlier;
        // Of several entries of a path the last one is so.
        let last: BTreeMap<_, _> = noted.into_iter().map(|noted| (noted.entry.path.clone(), noted)).collect();
        let (mut files, mut removed, mut not_back) = (Vec::new(), Vec::new(), NotBack::default());
        for (path, noted) in last {
            match noted.entry.node.is_some() {
                true if self.is_file_lost(&noted, was_compacted, is_doubtful)? => {
                    match self.lost_node(&noted, was_compacted)? {
                        Some(node) => files.push((path, node)),
                        None => not_back.add(&path, noted.entry.node.as_ref()),
                    }
                }
                false if self.is_removal_lost(&noted.entry)? => removed.push(path),
                _ => {}
            }
        }
        for (path, node) in files {
            self.begin()?;
            self.put(&path, Some(node))?;
        }
        for path in removed {
            if self.may_remove(&path, was_compacted, &not_back) {
                self.begin()?;
                self.put(&path, None)?;
            } else {
                not_back.add(&path, None);
            }
        }
        self.sync()?;
        Ok(not_back)
    }

    /// Whether the container lacks the entry of a file: it is not where it was put, or not all of it, and the path has no later one.
    fn is_file_lost(&self, noted: &Noted, was_compacted: bool, is_doubtful: bool) -> Result<bool> {
        let Noted { entry, lane, address, .. } = noted;
        let version = self.container.version(&entry.path)?;
        if version >= entry.version {
            return Ok(is_doubtful && version == entry.version);
        }
        if was_compacted || !self.container.has_put(entry, *lane, *address)? {
            return Ok(true);
        }
        let Some(node) = &entry.node else { return Ok(false) };
        for piece in pieces_of(node) {
            if !self.container.is_whole(node, piece)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an older file is where one was removed.
    fn is_removal_lost(&self, entry: &Entry) -> Result<bool> {
        let found = self.container.find(&entry.path)?;
        Ok(found.is_some_and(|found| found.version < entry.version))
    }

    /// Whether what is at a path is certainly what was removed there, and is not needed under it.
    fn may_remove(&mut self, path: &[u8], was_compacted: bool, not_back: &NotBack) -> bool {
        // What the packer has told itself is no file.
        let is_needless = |stat: PackedStat| !was_compacted && !not_back.may_have(stat.number);
        self.entry(path).is_err() || self.stat(path).is_ok_and(is_needless)
    }

    /// A file without content that was lost and not safe before: the stores of the job have that, and flush it again. Nothing where what
    /// was safe cannot be read, either.
    fn lost_node(&self, noted: &Noted, was_compacted: bool) -> Result<Option<Node>> {
        let Noted { entry: Entry { node, .. }, unsafe_pieces, .. } = noted;
        let Some(mut node) = node.clone() else { return Ok(None) };
        let mut there = Vec::new();
        for (number, piece) in (0..).zip(pieces_of(&node)) {
            let was_safe = !unsafe_pieces.contains(&number);
            if !was_compacted && self.container.is_whole(&node, piece)? {
                there.push(*piece);
            } else if was_safe {
                return Ok(None);
            }
        }
        if let Content::Extents(pieces) = &mut node.content {
            *pieces = there;
        }
        Ok(Some(node))
    }
}
