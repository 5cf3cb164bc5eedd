//! An open container: the paths of its index, merged with those added to lanes since.

mod external;
pub mod file;
mod follow;

pub mod links;
mod path_key;
mod proof;
pub mod records;
mod report;
pub mod scan;
mod snapshot;
mod walk;
mod writing;

pub use report::Report;
pub use snapshot::Snapshot;
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

/// A damaged part of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The lane.
    pub lane: LaneId,
    /// Address in the lane.
    pub address: u64,
    /// The reason.
    pub why: String,
}

/// A container that is open for reading. It shows the state at the time of the open, or of the last [`Container::refresh`]. Lookups and
/// walks fail with `EIO` where the index is damaged, and reads of an entry where its record is.
pub struct Container {
    records: Arc<Records>,
    /// Ignores the index.
    is_by_records: bool,
    index: Option<Index>,
    /// Newest entries of lanes beyond the index, including removals.
    added: BTreeMap<PathKey, IndexEntry>,
    ends: BTreeMap<LaneId, LaneEnd>,
    /// Lanes whose end is known without a scan: of writers of this process, and of reports.
    known_ends: BTreeSet<LaneId>,
    /// Lanes with an entry that `added` does not have, because a newer one of another lane, maybe not durable yet, took its place.
    displaced: BTreeSet<LaneId>,
    damage: Vec<Damage>,
    /// Entries that are not valid.
    refused: Vec<IndexEntry>,
    /// Number of files with external content in the container's directory.
    external: usize,
}

impl Container {
    /// Opens the container whose directory is `fs`. Scans lanes for what the index lacks.
    ///
    /// # Errors
    /// `EINVAL` if this is not a container, `EIO` if its header or index is damaged, and errors of the file system.
    pub fn open(fs: Arc<dyn SharedFs>) -> Result<Self> {
        let superblock = Superblock::read(&*fs)?;
        Self::open_as(fs, superblock)
    }

    /// As [`Self::open`], if the superblock was read already.
    pub fn open_as(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Result<Self> {
        let index = Index::of_container(&*fs, superblock.container)?;
        Self::with_index(fs, superblock, index, false)
    }

    /// Opens it by a scan of all lanes, without the index.
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
        container.scan_lanes(&Listing::of(&**container.records.fs())?)?;
        Ok(container)
    }

    /// The state of the index only.
    fn unseen(
        fs: Arc<dyn SharedFs>,
        superblock: Superblock,
        index: Option<Index>,
        is_by_records: bool,
    ) -> Self {
        let ends = index.iter().flat_map(Index::lanes).map(|end| (end.lane, *end)).collect();
        let records = Arc::new(Records::new(fs, superblock));
        let (added, known_ends, displaced, damage, refused) = Default::default();
        Self {
            records,
            is_by_records,
            index,
            added,
            ends,
            known_ends,
            displaced,
            damage,
            refused,
            external: 0,
        }
    }

    /// Scans lanes for what was added since the open or the last refresh.
    pub fn refresh(&mut self) -> Result<()> {
        self.refresh_but(&BTreeSet::new())
    }

    /// As [`Self::refresh`], without the subfiles `known`.
    fn refresh_but(&mut self, known: &BTreeSet<u32>) -> Result<()> {
        let mut listing = Listing::of(&**self.records.fs())?;
        if self.ends.keys().any(|lane| listing.numbers.binary_search(&lane.subfile).is_err()) {
            // Subfiles are gone: the container was compacted, so all state is obsolete.
            *self = match self.is_by_records {
                true => Self::open_by_records(self.records.fs().clone())?,
                false => Self::open(self.records.fs().clone())?,
            };
            return Ok(());
        }
        listing.numbers.retain(|number| !known.contains(number));
        self.scan_lanes(&listing)
    }

    /// Scans the lanes that may have more than is known.
    fn scan_lanes(&mut self, listing: &Listing) -> Result<()> {
        self.external = listing.external.len();
        for (number, lanes) in self.records.lanes(&listing.numbers)? {
            for (lane, LaneState { incarnation, is_finished }) in (0..).zip(lanes) {
                let lane = LaneId { subfile: number, lane };
                let end = self.ends.get(&lane).copied().unwrap_or(LaneEnd::none(lane));
                // Without an index, incarnation 0 in the header is not trusted: it may be damaged, and the lane may have records.
                let may_have_more = match &self.index {
                    Some(_) => incarnation != end.incarnation() || (incarnation != 0 && !end.is_finished),
                    None => incarnation != end.incarnation() || !end.is_finished,
                };
                if may_have_more {
                    self.scan(end)?;
                    // Records that a writer was appending may have been read in part.
                    if !is_finished && self.is_damaged(lane) {
                        self.scan(end)?;
                    }
                }
            }
        }
        self.forget_replaced_damage()
    }

    /// Forgets damage of entries whose path was written again since: a restarted writer repeats what it had kept.
    fn forget_replaced_damage(&mut self) -> Result<()> {
        for entry in std::mem::take(&mut self.refused) {
            if self.version(&entry.path)? > entry.version {
                self.damage.retain(|damage| (damage.lane, damage.address) != (entry.lane, entry.address));
            } else {
                self.refused.push(entry);
            }
        }
        Ok(())
    }

    /// Scans a lane from where the last scan ended.
    fn scan(&mut self, from: LaneEnd) -> Result<()> {
        let file = self.records.subfile(from.lane.subfile)?.file().clone();
        let mut scan = LaneScan::new(file, self.records.superblock(), from)?;
        // Incomplete records are scanned again.
        self.damage.retain(|damage| damage.lane != from.lane || damage.address < from.address);
        self.refused.retain(|entry| entry.lane != from.lane || entry.address < from.address);
        let mut current = Incarnation::new(from.incarnation());
        loop {
            let before = scan.known_end();
            match scan.next()? {
                Some(Step::Record(head)) => {
                    if head.position.incarnation() != current.number {
                        let next = Incarnation::new(head.position.incarnation());
                        self.add_valid(std::mem::replace(&mut current, next))?;
                    }
                    current.durable_end = current.durable_end.max(head.durable_end());
                    current.entries.extend(index_entry(&head).map(|entry| (before, entry)));
                }
                Some(Step::Damage { address, why }) => {
                    self.damage.push(Damage { lane: from.lane, address, why });
                    current.first_invalid.get_or_insert(before);
                }
                None => break,
            }
        }
        let first_invalid = self.add_valid(current)?;
        let end = scan.known_end();
        // Damage stays beyond the end, also in an index: the next process that opens the container finds it again.
        let end_before_damage = first_invalid.map_or(end, |at| LaneEnd { is_finished: false, ..at });
        self.ends.insert(from.lane, end_before_damage);
        Ok(())
    }

    fn is_damaged(&self, lane: LaneId) -> bool {
        self.damage.iter().any(|damage| damage.lane == lane)
    }

    /// Decides which entries of an incarnation are valid, and adds them. Entries not known to be durable are valid if their content is
    /// readable; a removal only if nothing before it is missing, as a rename puts the new path before it removes the old one.
    /// Returns the position of the first invalid entry or damage.
    fn add_valid(&mut self, current: Incarnation) -> Result<Option<LaneEnd>> {
        let mut first_invalid = current.first_invalid;
        for (before, entry) in current.entries {
            let is_behind = first_invalid.is_some_and(|at| at.address <= before.address);
            let why = match entry.node {
                _ if entry.address < current.durable_end => None,
                None => is_behind.then_some("may have reappeared: its removal was not known to be durable, and records before it are missing or damaged"),
                Some(_) => (!self.check_records(&entry)?.is_empty()).then_some("is incomplete: its writer failed before it was durable"),
            };
            let Some(why) = why else {
                self.add(entry);
                continue;
            };
            let why = format!("{} {why}", shown(&entry.path));
            self.damage.push(Damage { lane: entry.lane, address: entry.address, why });
            self.refused.push(entry);
            if !is_behind {
                first_invalid = Some(before);
            }
        }
        Ok(first_invalid)
    }

    /// Adds an entry that a writer has put, without reading it.
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

    /// Damage found by scans.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The superblock.
    pub fn superblock(&self) -> Superblock {
        self.records.superblock()
    }

    /// The end of each lane.
    pub fn ends(&self) -> Vec<LaneEnd> {
        self.ends.values().filter(|end| end.incarnation() > 0).copied().collect()
    }

    /// Returns true if it was opened by its index.
    pub fn has_index(&self) -> bool {
        self.index.is_some()
    }

    /// Returns true if its index is complete.
    pub fn is_indexed(&self) -> bool {
        self.has_index() && self.added.is_empty()
    }

    /// The entry of a path.
    pub fn find(&self, path: &[u8]) -> Result<Option<IndexEntry>> {
        Ok(self.newest(path)?.filter(|entry| entry.node.is_some()))
    }

    /// The newest entry of a path, which may be a removal.
    fn newest(&self, path: &[u8]) -> Result<Option<IndexEntry>> {
        let added = self.added.get(&PathKey::of(path)).cloned();
        let indexed = self.index.as_ref().map(|index| index.find(path)).transpose()?.flatten();
        Ok(added.into_iter().chain(indexed).min_by(IndexEntry::newest_first))
    }

    /// The highest version of a path, also of one removed since the index was written; 0 if there is none.
    pub fn version(&self, path: &[u8]) -> Result<u64> {
        Ok(self.newest(path)?.map_or(0, |entry| entry.version))
    }

    /// Opens the file at a path.
    ///
    /// # Errors
    /// `ENOENT` if the path does not exist, and as [`Opener::open`].
    pub fn file(&self, path: &[u8]) -> Result<FileReader> {
        let missing = || format!("{}: it is not in the container", shown(path));
        let entry = self.find(path)?.ok_or_else(|| Fault::new(Errno::ENOENT, missing()))?;
        self.open_entry(&entry)
    }

    /// The attributes of an entry, including those of external content.
    pub fn describe(&self, entry: &IndexEntry) -> Result<Node> {
        self.opener().open_unread(entry).map(|file| file.node().clone())
    }

    /// As [`Self::file`], by an entry.
    pub fn open_entry(&self, entry: &IndexEntry) -> Result<FileReader> {
        self.opener().open(entry)
    }

    /// Opens files by entries, independently of this value.
    pub fn opener(&self) -> Opener {
        Opener(self.records.clone())
    }

    /// The node of an entry's record.
    pub fn node(&self, entry: &IndexEntry) -> Result<Node> {
        self.records.read_entry(entry, 0).map(|(_, node, _)| node)
    }

    /// Reads content that no entry references yet: a file with this node and these extents.
    pub fn open_extents(&self, node: Node, extents: Vec<Extent>) -> FileReader {
        FileReader::new(self.records.clone(), node, extents)
    }
}

/// Result of scanning one incarnation of a lane.
struct Incarnation {
    number: u32,
    /// The writer knew everything before this address to be durable.
    durable_end: u64,
    /// Entries, each with the end of the record before it.
    entries: Vec<(LaneEnd, IndexEntry)>,
    /// End of the record before the first damage.
    first_invalid: Option<LaneEnd>,
}

impl Incarnation {
    fn new(number: u32) -> Self {
        Self { number, durable_end: 0, entries: Vec::new(), first_invalid: None }
    }
}

/// The index entry of a record.
fn index_entry(head: &Head) -> Option<IndexEntry> {
    let entry = head.entry.as_ref().filter(|_| head.kind == Kind::Entry)?;
    Some(IndexEntry {
        path: entry.path.clone(),
        version: entry.version,
        lane: head.position.lane,
        address: head.position.address,
        record_size: head.size + head.stored_size,
        node: entry.node.as_ref().map(Brief::of),
    })
}
