//! A container that is open for reading: the paths that its index tells of, and those that were added after it.

pub mod file;
mod follow;
mod known;
pub mod links;
mod outside;
mod path_key;
mod proof;
pub mod records;
mod report;
pub mod scan;
mod walk;
mod writing;

pub use known::Known;
pub use report::Report;
pub use walk::Walk;

use super::index::{Brief, Index, IndexEntry, LaneEnd};
use crate::display::shown;
use crate::format::entry::{Extent, Node};
use crate::format::geometry::LaneId;
use crate::format::listing::Listing;
use crate::format::record::{Head, Kind};
use crate::format::subfile::LaneState;
use crate::format::superblock::Superblock;
use file::{FileReader, Opener};
use path_key::PathKey;
use records::Records;
use scan::{LaneScan, Step};
use std::cmp::Ordering;
use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::SharedFs;

/// Something of a container that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whose it is.
    pub lane: LaneId,
    /// Where.
    pub address: u64,
    /// What is wrong there.
    pub why: String,
}

/// A container that is open for reading. It shows what was there when it was opened, or last looked at again ([`Container::refresh`]).
pub struct Container {
    records: Arc<Records>,
    /// Its index is not looked at.
    is_by_records: bool,
    index: Option<Index>,
    /// What lanes have beyond the index, removals among it.
    added: BTreeMap<PathKey, IndexEntry>,
    ends: BTreeMap<LaneId, LaneEnd>,
    /// Lanes whose writers have told here how they end: this process's own, and those of reports.
    told: BTreeSet<LaneId>,
    /// Lanes that have an entry in whose place one of another lane is known, which may be lost yet.
    displaced: BTreeSet<LaneId>,
    damage: Vec<Damage>,
    /// Entries that are not believed.
    refused: Vec<IndexEntry>,
    /// Files of its directory that have content of others.
    outside: usize,
}

impl Container {
    /// Opens the container whose directory `fs` is. What its index does not have is looked for in its lanes.
    ///
    /// # Errors
    /// `EINVAL` when it is no container, `EIO` when its header or index is damaged, and what the file system says.
    pub fn open(fs: Arc<dyn SharedFs>) -> Result<Self> {
        let superblock = Superblock::read(&*fs)?;
        Self::open_as(fs, superblock)
    }

    /// The same of one whose superblock was read already.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_as(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Result<Self> {
        let index = Index::of_container(&*fs, superblock.container)?;
        Self::with_index(fs, superblock, index, false)
    }

    /// Opens it by going through all of its lanes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_by_records(fs: Arc<dyn SharedFs>) -> Result<Self> {
        let superblock = Superblock::read(&*fs)?;
        Self::with_index(fs, superblock, None, true)
    }

    fn with_index(
        fs: Arc<dyn SharedFs>,
        superblock: Superblock,
        index: Option<Index>,
        is_by_records: bool,
    ) -> Result<Self> {
        let mut container = Self::unseen(fs, superblock, index, is_by_records);
        container.look(&Listing::of(&**container.records.fs())?)?;
        Ok(container)
    }

    /// What its index tells, and nothing more.
    fn unseen(
        fs: Arc<dyn SharedFs>,
        superblock: Superblock,
        index: Option<Index>,
        is_by_records: bool,
    ) -> Self {
        let ends = index.iter().flat_map(Index::lanes).map(|end| (end.lane, *end)).collect();
        let records = Arc::new(Records::new(fs, superblock));
        let (added, told, displaced, damage, refused) = Default::default();
        Self { records, is_by_records, index, added, ends, told, displaced, damage, refused, outside: 0 }
    }

    /// Looks for what was added since it was opened, or looked at the last time.
    ///
    /// # Errors
    /// What the file system says.
    pub fn refresh(&mut self) -> Result<()> {
        self.refresh_but(&BTreeSet::new())
    }

    /// The same, but for these subfiles.
    fn refresh_but(&mut self, known: &BTreeSet<u32>) -> Result<()> {
        let mut listing = Listing::of(&**self.records.fs())?;
        if self.ends.keys().any(|lane| listing.numbers.binary_search(&lane.subfile).is_err()) {
            // It was compacted: nothing that was known of it holds.
            *self = match self.is_by_records {
                true => Self::open_by_records(self.records.fs().clone())?,
                false => Self::open(self.records.fs().clone())?,
            };
            return Ok(());
        }
        listing.numbers.retain(|number| !known.contains(number));
        self.look(&listing)
    }

    /// Goes through what lanes of its subfiles have beyond what is known.
    fn look(&mut self, listing: &Listing) -> Result<()> {
        self.outside = listing.outside.len();
        for (number, lanes) in self.records.lanes(&listing.numbers)? {
            for (lane, LaneState { life, is_finished }) in (0..).zip(lanes) {
                let lane = LaneId { subfile: number, lane };
                let end = self.ends.get(&lane).copied().unwrap_or(LaneEnd::none(lane));
                // Without an index nothing is believed that could be damaged.
                let may_have_more = match &self.index {
                    Some(_) => life != end.life() || (life != 0 && !end.is_finished),
                    None => life != end.life() || !end.is_finished,
                };
                if may_have_more {
                    self.scan(end)?;
                    // Records that its writer was putting meanwhile may have been read in part.
                    if !is_finished && self.is_damaged(lane) {
                        self.scan(end)?;
                    }
                }
            }
        }
        self.forget_replaced()
    }

    /// What is not believed is no damage where the path was put again since: by a writer that was started again, of what it had kept.
    fn forget_replaced(&mut self) -> Result<()> {
        for entry in std::mem::take(&mut self.refused) {
            if self.version(&entry.path)? > entry.version {
                self.damage.retain(|damage| (damage.lane, damage.address) != (entry.lane, entry.address));
            } else {
                self.refused.push(entry);
            }
        }
        Ok(())
    }

    /// Goes through a lane from where that was done before.
    fn scan(&mut self, from: LaneEnd) -> Result<()> {
        let file = self.records.subfile(from.lane.subfile)?.file().clone();
        let mut scan = LaneScan::new(file, self.records.superblock(), from)?;
        // What was not yet all there is looked at again.
        self.damage.retain(|damage| damage.lane != from.lane || damage.address < from.address);
        self.refused.retain(|entry| entry.lane != from.lane || entry.address < from.address);
        let mut life = Life::new(from.life());
        loop {
            let before = scan.known_end();
            match scan.next()? {
                Some(Step::Record(head)) => {
                    if head.place.life() != life.number {
                        let next = Life::new(head.place.life());
                        self.settle(std::mem::replace(&mut life, next))?;
                    }
                    life.safe_end = life.safe_end.max(head.safe_end());
                    life.entries.extend(index_entry(&head).map(|entry| (before, entry)));
                }
                Some(Step::Damage { address, why }) => {
                    self.damage.push(Damage { lane: from.lane, address, why });
                    life.doubtful.get_or_insert(before);
                }
                None => break,
            }
        }
        let doubtful = self.settle(life)?;
        let end = scan.known_end();
        // What is damaged stays beyond the end, in an index too: whoever opens the container finds the damage again.
        let settled = doubtful.map_or(end, |doubtful| LaneEnd { is_finished: false, ..doubtful });
        self.ends.insert(from.lane, settled);
        Ok(())
    }

    fn is_damaged(&self, lane: LaneId) -> bool {
        self.damage.iter().any(|damage| damage.lane == lane)
    }

    /// What may be there in part is believed when it is there; a removal when all before it is, as that may be where its file is now. Where the
    /// first thing is that is not.
    fn settle(&mut self, life: Life) -> Result<Option<LaneEnd>> {
        let mut doubtful = life.doubtful;
        for (before, entry) in life.entries {
            let is_behind = doubtful.is_some_and(|doubtful| doubtful.address <= before.address);
            let why = match entry.node {
                _ if entry.address < life.safe_end => None,
                None => is_behind.then_some("may be back: its removal comes after what is not all there, and its writer has never known it to be safe"),
                Some(_) => (!self.check_records(&entry)?.is_empty()).then_some("is not all there: its writer has never known it to be safe"),
            };
            let Some(why) = why else {
                self.add(entry);
                continue;
            };
            let why = format!("{} {why}", shown(&entry.path));
            self.damage.push(Damage { lane: entry.lane, address: entry.address, why });
            self.refused.push(entry);
            if !is_behind {
                doubtful = Some(before);
            }
        }
        Ok(doubtful)
    }

    /// Tells of an entry that was put, without reading it.
    pub fn add(&mut self, entry: IndexEntry) {
        let known = match self.added.entry(PathKey::of(&entry.path)) {
            MapEntry::Vacant(place) => {
                place.insert(entry);
                return;
            }
            MapEntry::Occupied(known) => known.into_mut(),
        };
        let lanes = [known.lane, entry.lane];
        let is_newer = entry.newest_first(known) != Ordering::Greater;
        let older = if is_newer { std::mem::replace(known, entry) } else { entry };
        if lanes[0] != lanes[1] {
            self.displaced.insert(older.lane);
        }
    }

    /// What is damaged of the records that were gone through.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// What is the same for all of it.
    pub fn superblock(&self) -> Superblock {
        self.records.superblock()
    }

    /// Where each lane ends.
    pub fn ends(&self) -> Vec<LaneEnd> {
        self.ends.values().filter(|end| end.life() > 0).copied().collect()
    }

    /// Whether it was opened by its index.
    pub fn has_index(&self) -> bool {
        self.index.is_some()
    }

    /// Whether its index has all that is there.
    pub fn is_indexed(&self) -> bool {
        self.has_index() && self.added.is_empty()
    }

    /// What is at a path.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn find(&self, path: &[u8]) -> Result<Option<IndexEntry>> {
        let added = self.added.get(&PathKey::of(path)).cloned();
        let indexed = match &self.index {
            Some(index) => index.find(path)?,
            None => None,
        };
        let newest = added.into_iter().chain(indexed).min_by(IndexEntry::newest_first);
        Ok(newest.filter(|entry| entry.node.is_some()))
    }

    /// The highest version of a path, also of one that was removed since the index was made; 0 when there is none.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn version(&self, path: &[u8]) -> Result<u64> {
        let added = self.added.get(&PathKey::of(path)).map_or(0, |entry| entry.version);
        let indexed = match &self.index {
            Some(index) => index.find(path)?.map_or(0, |entry| entry.version),
            None => 0,
        };
        Ok(added.max(indexed))
    }

    /// All that is told of a file, and its content.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing at the path, and as [`Opener::open`].
    pub fn file(&self, path: &[u8]) -> Result<FileReader> {
        let missing = || format!("{}: it is not in the container", shown(path));
        let entry = self.find(path)?.ok_or_else(|| Fault::new(Errno::ENOENT, missing()))?;
        self.open_entry(&entry)
    }

    /// What is told of a file, by an entry that was found, for who reads nothing of its content.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn describe(&self, entry: &IndexEntry) -> Result<Node> {
        self.opener().open_unread(entry).map(|file| file.node().clone())
    }

    /// As [`Self::file`], of an entry that was found.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn open_entry(&self, entry: &IndexEntry) -> Result<FileReader> {
        self.opener().open(entry)
    }

    /// Opens files by their entries, without the container at hand.
    pub fn opener(&self) -> Opener {
        Opener(self.records.clone())
    }

    /// All that an entry's record tells, but for its content.
    ///
    /// # Errors
    /// `EIO` when its record is damaged.
    pub fn node(&self, entry: &IndexEntry) -> Result<Node> {
        self.records.read_entry(entry, 0).map(|(_, node, _)| node)
    }

    /// Reads content of which no entry needs to tell: a file with that node and these extents.
    pub fn open_extents(&self, node: Node, extents: Vec<Extent>) -> FileReader {
        FileReader::new(self.records.clone(), node, extents)
    }
}

/// What was found of a life of a lane.
struct Life {
    number: u32,
    /// Its writer has known that what is before is safe.
    safe_end: u64,
    /// Entries, and where the record before each ends.
    entries: Vec<(LaneEnd, IndexEntry)>,
    /// Where the record before the first damage ends.
    doubtful: Option<LaneEnd>,
}

impl Life {
    fn new(number: u32) -> Self {
        Self { number, safe_end: 0, entries: Vec::new(), doubtful: None }
    }
}

/// What an index has of a record.
fn index_entry(head: &Head) -> Option<IndexEntry> {
    let entry = head.entry.as_ref().filter(|_| head.kind == Kind::Entry)?;
    Some(IndexEntry {
        path: entry.path.clone(),
        version: entry.version,
        lane: head.place.lane,
        address: head.place.address,
        record_size: head.size + head.kept_size,
        node: entry.node.as_ref().map(Brief::of),
    })
}
