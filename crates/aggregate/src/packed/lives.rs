//! Lives of packers that did not end well, as a later one finds what they have left.

use super::CONTAINER;
use super::journal::{Journal, Noted};
use super::store::Store;
use std::collections::BTreeMap;
use tameike_core::{Fault, Result};
use tameike_io::shared::{Access, SharedFs};
use tameike_store::container::subfile::{self, Subfile};
use tameike_store::container::{Content, Entry, Node, Superblock};

/// What earlier lives have left in a container.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
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
pub fn settle(fs: &dyn SharedFs) -> Result<Settled> {
    let superblock = Superblock::read(fs)?;
    let mut settled = Settled::default();
    for number in subfile::numbers(fs)? {
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        if subfile.lanes()?.iter().any(|lane| lane.life != 0 && !lane.is_finished) {
            settled.was_cut_off = true;
            if let Err(fault) = subfile.file().sync() {
                settled.is_doubtful = true;
                log::warn!(
                    "what was packed by a job that was cut off is believed where it can be read: {fault}"
                );
            }
            subfile.file().forget_pages()?;
        }
    }
    Ok(settled)
}

impl Store {
    /// Puts again what an earlier life of this packer has noted and the container has lost. Where that cannot be, nothing more is put: it
    /// stays noted for another life.
    pub(super) fn put_lost(&mut self, noted: Vec<Noted>, is_doubtful: bool) {
        if noted.is_empty() {
            return;
        }
        // All of it is noted already.
        let journal = self.journal.take();
        let put = self.try_put_lost(noted, is_doubtful);
        self.journal = journal;
        if let Err(fault) = put.and_then(|()| self.journal.as_mut().map_or(Ok(()), Journal::clear)) {
            let why = format!(
                "{}: names that the file system has lost could not be put again: {fault}",
                String::from_utf8_lossy(CONTAINER)
            );
            self.failure = Some(Fault::new(fault.errno, why));
        }
    }

    fn try_put_lost(&mut self, noted: Vec<Noted>, is_doubtful: bool) -> Result<()> {
        // Of several entries of a path the last one is so.
        let last: BTreeMap<_, _> = noted.into_iter().map(|noted| (noted.entry.path.clone(), noted)).collect();
        let (mut files, mut removed, mut is_all_there) = (Vec::new(), Vec::new(), true);
        for noted in last.into_values() {
            if !self.is_lost(&noted, is_doubtful)? {
                continue;
            }
            let path = noted.entry.path.clone();
            match (noted.entry.node.is_some(), self.lost_node(noted)?) {
                (true, Some(node)) => files.push((path, node)),
                (false, _) => removed.push(path),
                (true, None) => is_all_there = false,
            }
        }
        for (path, node) in files {
            self.begin()?;
            self.put(&path, Some(node))?;
        }
        // What cannot be read under a new name may be whole under the old one.
        for path in removed.iter().filter(|_| is_all_there) {
            self.begin()?;
            self.put(path, None)?;
        }
        self.sync()
    }

    /// Whether the container lacks an entry: it is not where it was put, and the path has no later one.
    fn is_lost(&self, noted: &Noted, is_doubtful: bool) -> Result<bool> {
        let Noted { entry, lane, address, .. } = noted;
        let version = self.container.version(&entry.path)?;
        let is_there = version >= entry.version || self.container.has_put(entry, *lane, *address)?;
        Ok(!is_there || (is_doubtful && version == entry.version))
    }

    /// A file without content that was lost and not safe before: the stores of the job have that, and flush it again. Nothing where what
    /// was safe cannot be read, either.
    fn lost_node(&self, noted: Noted) -> Result<Option<Node>> {
        let Noted { entry: Entry { path, node, .. }, unsafe_pieces, .. } = noted;
        let Some(mut node) = node else { return Ok(None) };
        let Content::Extents(pieces) = std::mem::replace(&mut node.content, Content::Here) else {
            return Ok(Some(node));
        };
        let mut there = Vec::new();
        for (number, piece) in (0..).zip(pieces) {
            if self.container.is_whole(&node, &piece)? {
                there.push(piece);
            } else if !unsafe_pieces.contains(&number) {
                log::warn!(
                    "{}: its last change before the job was cut off is not brought back: content that was safe before cannot be read",
                    String::from_utf8_lossy(&path)
                );
                return Ok(None);
            }
        }
        node.content = Content::Extents(there);
        Ok(Some(node))
    }
}
