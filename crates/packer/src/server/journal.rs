//! Entries that are not safe in the container yet, on a device of the packer's node.
//!
//! What a file system has taken into memory and cannot keep it tells of once, at an fsync, and forgets. Bytes of files are in the
//! stores of the job then; names and attributes are here (decision 0060). Two files take turns: one is added to, the other has what a sync
//! is under way of, or is empty.
//!
//! ```text
//! 0                 8                  16                 24       28       32
//! +-----------------+------------------+------------------+--------+--------+
//! | "tmkpack1"      | container        | generation       | oldest | zero   |   header: the file is empty without one,
//! +--------+--------+--------+---------+---------+--------+--------+--------+   or with another container
//! | length | crc32c | place                       | pieces | entry           |   each record; the first that is none ends the file
//! +--------+--------+-----------------------------+--------+-----------------+
//!
//! oldest   u32: the lowest number of a subfile that is no host's; all ones where there is none. Compacting changes it
//! place    of the entry in the container: subfile u32, lane u32, address u64
//! pieces   count u32, then so many u32: which pieces of the content were not safe
//! entry    as in the container
//! ```
//!
//! Numbers are little-endian. The checksum is of generation, oldest, and what comes after it: what an earlier generation has left is no record.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use tameike_container::{Content, Entry, Extent, LaneId, Node};
use tameike_core::{Errno, Result};
use tameike_io::Crc32c;
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{Access, Allocate, SharedFile, SharedFs};

const NAMES: [&[u8]; 2] = [b"packed.0", b"packed.1"];
const MAGIC: [u8; 8] = *b"tmkpack1";
const HEADER_SIZE: usize = 32;
const RECORD_HEAD_SIZE: usize = 8;
/// Bytes that a file has from the beginning, so that a full device stops nothing.
const ROOM: u64 = 4 << 20;
/// With so many bytes the container is to be synced.
const FULL_SIZE: u64 = ROOM / 2;

/// What is noted of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The entry.
    pub entry: Entry,
    /// Where it was put.
    pub lane: LaneId,
    /// Where in the lane.
    pub address: u64,
    /// Which pieces of its content were not safe then.
    pub unsafe_pieces: Vec<u32>,
}

/// Whose entries are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The number of the container.
    pub container: u64,
    /// The lowest number of a subfile of it that is no host's.
    pub oldest: u32,
}

/// What a journal has that is opened.
#[derive(Debug, Default)]
pub struct Earlier {
    /// What was not safe when it was written last, in the order of the changes.
    pub noted: Vec<Noted>,
    /// The container was compacted since: what is at a place is not what was.
    pub was_compacted: bool,
}

/// The journal of a packer.
pub struct Journal {
    files: [Arc<dyn SharedFile>; 2],
    whose: Whose,
    generation: u64,
    /// Which file is added to.
    current: usize,
    /// Bytes of that file.
    size: u64,
    /// Nothing is in the other file.
    is_other_empty: bool,
    /// Records that are not written yet.
    pending: Vec<u8>,
}

impl Journal {
    /// Opens the journal of a container in a directory of the device, or makes one; with what an earlier one has noted of that container.
    ///
    /// # Errors
    /// What the device says.
    pub fn open(dir: &dyn SharedFs, whose: Whose) -> Result<(Self, Earlier)> {
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
            // What others have left in it is none of this one's.
            journal.begin_file(current, u64::from_le_bytes(random_bytes()?) >> 1)?;
        }
        Ok((journal, earlier))
    }

    /// Notes an entry; it is there when it was [written](Self::write).
    pub fn add(&mut self, noted: &Noted) {
        let body = noted.encode();
        self.pending.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(&checksum(self.generation, self.whose.oldest, &body).to_le_bytes());
        self.pending.extend_from_slice(&body);
    }

    /// Has all that was noted be there, whatever becomes of this process.
    ///
    /// # Errors
    /// What the device says; then the next call tries again.
    pub fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.files[self.current].write_at(&self.pending, self.size)?;
        self.size += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Whether there is so much in it that the container is to be synced.
    pub fn is_full(&self) -> bool {
        self.size >= FULL_SIZE
    }

    /// A sync of all that was written begins: what comes from now on is kept apart from it.
    pub fn begin_sync(&mut self) {
        // Otherwise more is kept than need be, until the next one.
        if self.is_other_empty && self.pending.is_empty() {
            let begun = self.begin_file(1 - self.current, self.generation + 1);
            self.is_other_empty = begun.is_err();
        }
    }

    /// All that was written before the last sync began is safe.
    pub fn end_sync(&mut self) {
        self.is_other_empty = self.is_other_empty || empty(&*self.files[1 - self.current]).is_ok();
    }

    /// Nothing that was noted is needed any more, also after a loss of power.
    ///
    /// # Errors
    /// What the device says.
    pub fn clear(&mut self) -> Result<()> {
        self.pending.clear();
        empty(&*self.files[1 - self.current])?;
        self.is_other_empty = true;
        self.begin_file(self.current, self.generation + 1)?;
        self.files.iter().try_for_each(|file| file.sync())
    }

    /// Adds to a file from its beginning.
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

/// How many changes of packed names are noted in the directory of a device as not safe yet, of whatever container.
///
/// # Errors
/// What the device says.
pub fn count_noted(dir: &dyn SharedFs) -> Result<u64> {
    let count = |found: Option<Found>| found.map_or(0, |found| found.noted.len() as u64);
    files_in(dir).map(|file| Found::read(&*file?).map(count)).sum()
}

/// Those that are there.
fn files_in(dir: &dyn SharedFs) -> impl Iterator<Item = Result<Arc<dyn SharedFile>>> {
    let opened = NAMES.into_iter().map(|name| dir.open(name, Access::Write));
    opened.filter(|file| !file.as_ref().is_err_and(|fault| fault.errno == Errno::ENOENT))
}

fn make_file(dir: &dyn SharedFs, name: &[u8]) -> Result<Arc<dyn SharedFile>> {
    let file = match dir.open(name, Access::Write) {
        Err(fault) if fault.errno == Errno::ENOENT => dir.create(name, 0o600)?,
        opened => opened?,
    };
    match file.allocate(Allocate::Keep, 0, ROOM) {
        // Some have no such call: then the device has room when it is needed, or not. And nothing keeps from reading what is noted.
        Err(fault) if fault.errno != Errno::EOPNOTSUPP && file.stat()?.size == 0 => Err(fault),
        _ => Ok(file),
    }
}

fn empty(file: &dyn SharedFile) -> Result<()> {
    file.write_at(&[0; HEADER_SIZE], 0)
}

/// What a file has.
struct Found {
    whose: Whose,
    generation: u64,
    /// Where the next record goes.
    end: u64,
    noted: Vec<Noted>,
}

impl Found {
    /// Nothing where it is empty.
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
        let whose = Whose { container, oldest: number(24)? as u32 };
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

/// What the first record has, and what is behind it.
fn parse_record(bytes: &[u8], generation: u64, oldest: u32) -> Option<(Noted, &[u8])> {
    let (head, rest) = bytes.split_at_checked(RECORD_HEAD_SIZE)?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let (body, rest) = rest.split_at_checked(length)?;
    let is_whole = checksum(generation, oldest, body) == u32::from_le_bytes(*head.last_chunk()?);
    Some((Noted::decode(body).filter(|_| is_whole)?, rest))
}

impl Noted {
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

/// The pieces that content is in.
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
