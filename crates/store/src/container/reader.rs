//! A container that is open for reading.

use super::entry::{Entry, split_path};
use super::file::FileReader;
use super::geometry::{ADDRESS_MAX, LaneId};
use super::index::{Brief, Index, IndexEntry, LaneEnd, compare_paths};
use super::record::{self, Found, Head, Kind, Place};
use super::scan::{LaneScan, Step};
use super::superblock::{Superblock, subfile_name, subfile_of};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{Access, SharedFile, SharedFs};

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

/// A container that is open for reading. It shows what it was when it was opened.
pub struct Container {
    fs: Arc<dyn SharedFs>,
    superblock: Superblock,
    names: Names,
    ends: Vec<LaneEnd>,
    damage: Vec<Damage>,
    subfiles: Mutex<BTreeMap<u32, Arc<dyn SharedFile>>>,
}

/// What tells of paths.
enum Names {
    Index(Index),
    /// What lanes have, in the order of an index.
    Records(Vec<IndexEntry>),
}

/// Entries by directory and name.
pub type Walk<'a> = Box<dyn Iterator<Item = Result<IndexEntry>> + 'a>;

impl Container {
    /// Opens the container whose directory `fs` is. Where it has no closing index, the lanes are gone through.
    ///
    /// # Errors
    /// `EINVAL` when it is no container, `EIO` when its header or index is damaged, and what the file system says.
    pub fn open(fs: Arc<dyn SharedFs>) -> Result<Self> {
        let superblock = Superblock::read(&*fs)?;
        match Index::of_container(&*fs, superblock.container)? {
            Some(index) => {
                let ends = index.lanes().to_vec();
                Ok(Self { names: Names::Index(index), ends, ..Self::empty(fs, superblock) })
            }
            None => Self::empty(fs, superblock).scanned(&[]),
        }
    }

    /// Opens it by going through all lanes. Of its index, if one can be read, it only learns how much of them was safe.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_by_records(fs: Arc<dyn SharedFs>) -> Result<Self> {
        let superblock = Superblock::read(&*fs)?;
        let index = match Index::of_container(&*fs, superblock.container) {
            Err(fault) if fault.errno == Errno::EIO => None,
            index => index?,
        };
        let safe = index.map_or_else(Vec::new, |index| index.lanes().to_vec());
        Self::empty(fs, superblock).scanned(&safe)
    }

    fn empty(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Self {
        let names = Names::Records(Vec::new());
        Self { fs, superblock, names, ends: Vec::new(), damage: Vec::new(), subfiles: Mutex::default() }
    }

    /// With what lanes have, which was safe as far as is told.
    fn scanned(mut self, safe: &[LaneEnd]) -> Result<Self> {
        let mut found = Vec::new();
        for subfile in self.subfile_numbers()? {
            for lane in 0..self.superblock.geometry.lanes {
                let lane = LaneId { subfile, lane };
                let known = safe.iter().find(|end| end.lane == lane).map_or(0, |end| end.address);
                self.scan(lane, known, &mut found)?;
            }
        }
        found.sort_unstable_by(IndexEntry::newest_first);
        found.dedup_by(|later, earlier| later.path == earlier.path);
        found.retain(|entry| entry.node.is_some());
        self.names = Names::Records(found);
        Ok(self)
    }

    fn subfile_numbers(&self) -> Result<Vec<u32>> {
        let (dir, mut numbers, mut after) = (self.fs.open_dir(b"")?, Vec::new(), 0);
        loop {
            let names = dir.read(after)?;
            let Some(last) = names.last() else { break };
            after = last.next;
            numbers.extend(names.iter().filter_map(|named| subfile_of(&named.name)));
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    fn scan(&mut self, lane: LaneId, known: u64, all: &mut Vec<IndexEntry>) -> Result<()> {
        let mut scan = LaneScan::new(self.subfile(lane.subfile)?, self.superblock, lane)?;
        let mut found = Vec::new();
        while let Some(step) = scan.next()? {
            match step {
                Step::Record(head) => found.extend(index_entry(&head)),
                Step::Damage { address, why } => self.damage.push(Damage { lane, address, why }),
            }
        }
        let safe_end = scan.safe_end().max(known);
        // What may be there in part is believed when it is there.
        for entry in found {
            if entry.address < safe_end || self.check(&entry)?.is_empty() {
                all.push(entry);
                continue;
            }
            let path = String::from_utf8_lossy(&entry.path);
            let why = format!("{path} is not all there: its writer has never known it to be safe");
            self.damage.push(Damage { lane, address: entry.address, why });
        }
        let (address, sequence) = scan.known_end();
        if sequence > 0 {
            self.ends.push(LaneEnd { lane, address, sequence });
        }
        Ok(())
    }

    /// What is damaged of the records that were gone through.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// What is the same for all of it.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// Where each lane ends.
    pub fn ends(&self) -> &[LaneEnd] {
        &self.ends
    }

    /// Whether it was opened by its index.
    pub fn has_index(&self) -> bool {
        matches!(self.names, Names::Index(_))
    }

    /// What is at a path.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn find(&self, path: &[u8]) -> Result<Option<IndexEntry>> {
        match &self.names {
            Names::Index(index) => index.find(path),
            Names::Records(found) => {
                let at = found.binary_search_by(|entry| compare_paths(&entry.path, path));
                Ok(at.ok().map(|at| found[at].clone()))
            }
        }
    }

    /// Everything that is there, by directory and name.
    ///
    /// # Errors
    /// `EIO` when the index is damaged.
    pub fn walk(&self) -> Result<Walk<'_>> {
        self.walk_from(b"")
    }

    /// What is in a directory, by name. Of one that is not there nothing.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn children<'a>(&'a self, dir: &'a [u8]) -> Result<Walk<'a>> {
        // No name is less.
        let first = if dir.is_empty() { vec![0] } else { [dir, b"/\0"].concat() };
        let is_there = move |entry: &Result<IndexEntry>| {
            entry.as_ref().map_or(true, |entry| split_path(&entry.path).0 == dir)
        };
        Ok(Box::new(self.walk_from(&first)?.take_while(is_there)))
    }

    fn walk_from(&self, path: &[u8]) -> Result<Walk<'_>> {
        match &self.names {
            Names::Index(index) => Ok(Box::new(index.iter_from(path)?)),
            Names::Records(found) => {
                let from = found.partition_point(|entry| compare_paths(&entry.path, path) == Ordering::Less);
                Ok(Box::new(found[from..].iter().cloned().map(Ok)))
            }
        }
    }

    /// All that is told of a file, and its content.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing at the path, `EIO` when its record is damaged.
    pub fn file(&self, path: &[u8]) -> Result<FileReader<'_>> {
        match self.find(path)? {
            Some(entry) => self.open_entry(&entry),
            None => Err(Fault::new(
                Errno::ENOENT,
                format!("{}: it is not in the container", String::from_utf8_lossy(path)),
            )),
        }
    }

    /// As [`Self::file`], of an entry that was found.
    ///
    /// # Errors
    /// `EIO` when its record is damaged.
    pub fn open_entry(&self, entry: &IndexEntry) -> Result<FileReader<'_>> {
        let (head, bytes) = self.read_record(entry.lane, entry.address, entry.record_size as usize)?;
        match &head.entry {
            Some(Entry { path, version, node: Some(node) })
                if *path == entry.path && *version == entry.version =>
            {
                Ok(FileReader::new(self, node.clone(), head, bytes))
            }
            _ => Err(self.not_there(entry.lane, entry.address, "it is another one than the index tells of")),
        }
    }

    /// What is damaged of a file: nothing when all of it can be read.
    ///
    /// # Errors
    /// What the file system says, beside damage.
    pub fn check(&self, entry: &IndexEntry) -> Result<Vec<Fault>> {
        if entry.node.is_none() {
            return Ok(Vec::new());
        }
        match self.open_entry(entry) {
            Ok(mut file) => file.damage(),
            Err(fault) if fault.errno == Errno::EIO => Ok(vec![fault]),
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn subfile(&self, number: u32) -> Result<Arc<dyn SharedFile>> {
        if let Some(file) = self.subfiles.lock().get(&number) {
            return Ok(file.clone());
        }
        let file = self.fs.open(&subfile_name(number), Access::Read)?;
        Ok(self.subfiles.lock().entry(number).or_insert(file).clone())
    }

    /// A record and the bytes of it that were read: `size`, and more where its head is larger.
    pub(super) fn read_record(&self, lane: LaneId, address: u64, size: usize) -> Result<(Head, Vec<u8>)> {
        let geometry = self.superblock.geometry;
        if lane.lane >= geometry.lanes
            || address >= ADDRESS_MAX
            || geometry.block_end(address) - address < record::FIXED_SIZE as u64
        {
            return Err(self.not_there(lane, address, "there is no such place"));
        }
        let file = match self.subfile(lane.subfile) {
            Err(fault) if fault.errno == Errno::ENOENT => {
                return Err(self.not_there(lane, address, "the subfile is missing"));
            }
            file => file?,
        };
        let room = (geometry.block_end(address) - address) as usize;
        let offset = geometry.offset(lane.lane, address);
        let mut wanted = size.clamp(record::FIXED_SIZE, room);
        let place = Place { container: self.superblock.container, lane, address, sequence: 0 };
        loop {
            let mut bytes = vec![0; wanted];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            if count < record::FIXED_SIZE {
                return Err(self.not_there(lane, address, "the subfile ends before it"));
            }
            match record::decode(&bytes, &place) {
                Found::Record(head) => return Ok((*head, bytes)),
                Found::Part(size) if size > wanted && size <= room => wanted = size,
                Found::Part(_) => return Err(self.not_there(lane, address, "the subfile ends in it")),
                Found::Blank => return Err(self.not_there(lane, address, "nothing was ever written there")),
                Found::Damaged(why) => return Err(self.not_there(lane, address, why)),
            }
        }
    }

    pub(super) fn not_there(&self, lane: LaneId, address: u64, why: &str) -> Fault {
        Fault::new(Errno::EIO, format!("the record at {address} in {lane} is damaged: {why}"))
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
