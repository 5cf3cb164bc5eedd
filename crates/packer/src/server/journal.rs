//! The packer's journal: entries that are not durable in the container yet, on a device of the packer's node.
//!
//! A file system that cannot write out dirty pages reports that once, at an fsync, and drops them. The stores of the job still have the
//! bytes of files then; the journal has names and attributes (decision 0060). Of its two files, one takes new records, the other has the
//! records of a running sync or is empty.
//!
//! ```text
//! 0                 8                  16                 24       28       32
//! +-----------------+------------------+------------------+--------+--------+
//! | "tmkpack1"      | container        | generation       | oldest | zero   |   header: the file is empty without one,
//! +--------+--------+--------+---------+---------+--------+--------+--------+   or with another container
//! | length | crc32c | place                       | pieces | entry           |   each record; the first that is none ends the file
//! +--------+--------+-----------------------------+--------+-----------------+
//!
//! oldest   u32: the lowest number of a subfile that no host owns; all ones where there is none. Compaction changes it
//! place    of the entry in the container: subfile u32, lane u32, address u64
//! pieces   count u32, then so many u32: the pieces of the content that were not durable
//! entry    as in the container
//! ```
//!
//! Numbers are little-endian. The checksum covers generation, oldest and the rest of the record: records of an earlier generation are
//! invalid.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use tameike_container::{Content, Entry, Extent, LaneId, Node};
use tameike_core::{Errno, Result};
use tameike_io::Crc32c;
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{Access, Allocate, SharedFile, SharedFs};

/// Its files.
pub const NAMES: [&[u8]; 2] = [b"packed.0", b"packed.1"];
const MAGIC: [u8; 8] = *b"tmkpack1";
const HEADER_SIZE: usize = 32;
const RECORD_HEAD_SIZE: usize = 8;
/// Bytes that are allocated for a file at first, so that a full device does not fail a write.
const PREALLOCATED_SIZE: u64 = 4 << 20;
/// With this many bytes the container must be synced.
const FULL_SIZE: u64 = PREALLOCATED_SIZE / 2;

/// A journaled entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The entry.
    pub entry: Entry,
    /// The lane in which it was put.
    pub lane: LaneId,
    /// Its address in the lane.
    pub address: u64,
    /// The pieces of its content that were not durable then.
    pub unsafe_pieces: Vec<u32>,
}

/// The container whose entries are journaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournaledContainer {
    /// The number of the container.
    pub container: u64,
    /// The lowest number of a subfile that no host owns.
    pub oldest: u32,
}

/// The content of a journal that is opened.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Entries that were not durable when they were written, in the order of the changes.
    pub noted: Vec<JournalEntry>,
    /// The container was compacted since: addresses have changed.
    pub was_compacted: bool,
}

/// The journal of a packer.
pub struct Journal {
    files: [Arc<dyn SharedFile>; 2],
    whose: JournaledContainer,
    generation: u64,
    /// The file that takes new records.
    current: usize,
    /// Bytes of that file.
    size: u64,
    /// The other file has no records.
    is_other_empty: bool,
    /// Records that are not written yet.
    pending: Vec<u8>,
}

impl Journal {
    /// Opens the journal of a container in a directory of the device, or creates it. Returns what an earlier incarnation has journaled of
    /// that container.
    pub fn open(dir: &dyn SharedFs, whose: JournaledContainer) -> Result<(Self, Earlier)> {
        let files = [make_file(dir, NAMES[0])?, make_file(dir, NAMES[1])?];
        let is_of_it = |found: &Found| found.whose.container == whose.container;
        let found = [Found::read(&*files[0])?.filter(is_of_it), Found::read(&*files[1])?.filter(is_of_it)];
        let generation = |number: usize| found[number].as_ref().map_or(0, |found| found.generation);
        let current = usize::from(generation(1) > generation(0));
        let mut journal = Self {
            whose,
            generation: generation(current),
            current,
            size: found[current].as_ref().map_or(0, |found| found.end),
            is_other_empty: found[1 - current].as_ref().is_none_or(|found| found.noted.is_empty()),
            files,
            pending: Vec::new(),
        };
        if journal.is_other_empty {
            empty(&*journal.files[1 - current])?;
        }
        let [first, second] = found;
        let files = if current == 1 { [first, second] } else { [second, first] };
        let mut earlier = Earlier::default();
        for found in files.into_iter().flatten().filter(|found| !found.noted.is_empty()) {
            earlier.was_compacted |= found.whose != whose;
            earlier.noted.extend(found.noted);
        }
        if earlier.noted.is_empty() {
            // Records of other containers are dropped.
            journal.begin_file(current, u64::from_le_bytes(random_bytes()?) >> 1)?;
        }
        Ok((journal, earlier))
    }

    /// Adds an entry, which [`Self::write`] writes.
    pub fn add(&mut self, noted: &JournalEntry) {
        let body = noted.encode();
        self.pending.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(&checksum(self.generation, self.whose.oldest, &body).to_le_bytes());
        self.pending.extend_from_slice(&body);
    }

    /// Writes all added entries: they survive this process. If that fails, the next call retries.
    pub fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.files[self.current].write_at(&self.pending, self.size)?;
        self.size += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Whether it is so large that the container must be synced.
    pub fn is_full(&self) -> bool {
        self.size >= FULL_SIZE
    }

    /// Begins a sync of all written entries: later ones go to the other file.
    pub fn begin_sync(&mut self) {
        // If that fails, records stay until the next sync.
        if self.is_other_empty && self.pending.is_empty() {
            let begun = self.begin_file(1 - self.current, self.generation + 1);
            self.is_other_empty = begun.is_err();
        }
    }

    /// Drops the entries from before the last begin of a sync: they are durable in the container.
    pub fn end_sync(&mut self) {
        self.is_other_empty = self.is_other_empty || empty(&*self.files[1 - self.current]).is_ok();
    }

    /// Drops all entries, durably.
    pub fn clear(&mut self) -> Result<()> {
        self.pending.clear();
        empty(&*self.files[1 - self.current])?;
        self.is_other_empty = true;
        self.begin_file(self.current, self.generation + 1)?;
        self.files.iter().try_for_each(|file| file.sync())
    }

    /// Starts a file with a new header.
    fn begin_file(&mut self, number: usize, generation: u64) -> Result<()> {
        let mut header = [0; HEADER_SIZE];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.whose.container.to_le_bytes());
        header[16..24].copy_from_slice(&generation.to_le_bytes());
        header[24..28].copy_from_slice(&self.whose.oldest.to_le_bytes());
        self.files[number].write_at(&header, 0)?;
        (self.current, self.size, self.generation) = (number, HEADER_SIZE as u64, generation);
        Ok(())
    }
}

/// The count of changes of packed names in a device's journal that are not durable, of any container.
pub fn count_journaled(dir: &dyn SharedFs) -> Result<u64> {
    let count = |found: Option<Found>| found.map_or(0, |found| found.noted.len() as u64);
    files_in(dir).map(|file| Found::read(&*file?).map(count)).sum()
}

/// The journal's files that exist.
fn files_in(dir: &dyn SharedFs) -> impl Iterator<Item = Result<Arc<dyn SharedFile>>> {
    let opened = NAMES.into_iter().map(|name| dir.open(name, Access::Write));
    opened.filter(|file| !file.as_ref().is_err_and(|fault| fault.errno == Errno::ENOENT))
}

fn make_file(dir: &dyn SharedFs, name: &[u8]) -> Result<Arc<dyn SharedFile>> {
    let file = match dir.open(name, Access::Write) {
        Err(fault) if fault.errno == Errno::ENOENT => dir.create(name, 0o600)?,
        opened => opened?,
    };
    match file.allocate(Allocate::Keep, 0, PREALLOCATED_SIZE) {
        // Some file systems cannot allocate: writes may find the device full then. An existing journal is read all the same.
        Err(fault) if fault.errno != Errno::EOPNOTSUPP && file.stat()?.size == 0 => Err(fault),
        _ => Ok(file),
    }
}

fn empty(file: &dyn SharedFile) -> Result<()> {
    file.write_at(&[0; HEADER_SIZE], 0)
}

/// The content of a journal file.
struct Found {
    whose: JournaledContainer,
    generation: u64,
    /// The offset of the next record.
    end: u64,
    noted: Vec<JournalEntry>,
}

impl Found {
    /// None where the file is empty.
    fn read(file: &dyn SharedFile) -> Result<Option<Self>> {
        Ok(Self::parse(&read_all(file)?))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_SIZE)?;
        let number = |at: usize| header[at..].first_chunk().copied().map(u64::from_le_bytes);
        if header[..8] != MAGIC {
            return None;
        }
        let (container, generation) = (number(8)?, number(16)?);
        let whose = JournaledContainer { container, oldest: number(24)? as u32 };
        let mut noted = Vec::new();
        while let Some((record, after)) = parse_record(rest, generation, whose.oldest) {
            noted.push(record);
            rest = after;
        }
        Some(Self { whose, generation, end: (bytes.len() - rest.len()) as u64, noted })
    }
}

fn read_all(file: &dyn SharedFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.stat()?.size as usize];
    let size = file.read_at(&mut bytes, 0)?;
    bytes.truncate(size);
    Ok(bytes)
}

/// The first record, and the bytes behind it.
fn parse_record(bytes: &[u8], generation: u64, oldest: u32) -> Option<(JournalEntry, &[u8])> {
    let (head, rest) = bytes.split_at_checked(RECORD_HEAD_SIZE)?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let (body, rest) = rest.split_at_checked(length)?;
    let is_whole = checksum(generation, oldest, body) == u32::from_le_bytes(*head.last_chunk()?);
    Some((JournalEntry::decode(body).filter(|_| is_whole)?, rest))
}

impl JournalEntry {
    fn encode(&self) -> Vec<u8> {
        let Self { entry, lane: LaneId { subfile, lane }, address, unsafe_pieces } = self;
        let mut body = [subfile.to_le_bytes(), lane.to_le_bytes()].concat();
        body.extend_from_slice(&address.to_le_bytes());
        let count = unsafe_pieces.len() as u32;
        std::iter::once(&count)
            .chain(unsafe_pieces)
            .for_each(|word| body.extend_from_slice(&word.to_le_bytes()));
        body.extend_from_slice(&entry.encode());
        body
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (subfile, rest) = take_word(bytes)?;
        let (lane, rest) = take_word(rest)?;
        let (address, rest) = rest.split_first_chunk()?;
        let (count, mut rest) = take_word(rest)?;
        let mut unsafe_pieces = Vec::new();
        for _ in 0..count {
            let (piece, after) = take_word(rest)?;
            unsafe_pieces.push(piece);
            rest = after;
        }
        let (lane, address) = (LaneId { subfile, lane }, u64::from_le_bytes(*address));
        Some(Self { entry: Entry::decode(rest)?, lane, address, unsafe_pieces })
    }
}

/// The pieces of a content.
pub fn pieces_of(node: &Node) -> &[Extent] {
    match &node.content {
        Content::Extents(pieces) => pieces,
        Content::Here => &[],
    }
}

fn take_word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(word, rest)| (u32::from_le_bytes(*word), rest))
}

fn checksum(generation: u64, oldest: u32, body: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&generation.to_le_bytes());
    sum.update(&oldest.to_le_bytes());
    sum.update(body);
    sum.take()
}
