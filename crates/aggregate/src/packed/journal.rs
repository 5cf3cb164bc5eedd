//! Entries that are not safe in the container yet, on a device of the packer's node.
//!
//! What a file system has taken into memory and cannot keep it tells of once, at an fsync, and forgets. Bytes of files are in the
//! stores of the job then; names and attributes are here (decision 0060). Two files take turns: one is added to, the other has what a sync
//! is under way of, or is empty.
//!
//! ```text
//! 0                 8                  16
//! +-----------------+------------------+------------------+
//! | "tmkpack1"      | container        | generation       |   header: the file is empty without one, or with another container
//! +--------+--------+------------------+------------------+
//! | length | crc32c | entry                                |   each record; the first that is none ends the file
//! +--------+--------+--------------------------------------+
//! ```
//!
//! Numbers are little-endian. The checksum is of the generation and the entry: what an earlier generation has left is no record.
//! Against a loss of power nothing here is safe, and need not be: who was told that a name is safe finds it in the container.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use tameike_core::{Errno, Result};
use tameike_io::Crc32c;
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{Access, Allocate, SharedFile, SharedFs};
use tameike_store::container::Entry;

const NAMES: [&[u8]; 2] = [b"packed.0", b"packed.1"];
const MAGIC: [u8; 8] = *b"tmkpack1";
const HEADER_SIZE: usize = 24;
const RECORD_HEAD_SIZE: usize = 8;
/// Bytes that a file has from the beginning, so that a full device stops nothing.
const ROOM: u64 = 4 << 20;
/// With so many bytes the container is to be synced.
const FULL_SIZE: u64 = ROOM / 2;

/// The journal of a packer.
pub struct Journal {
    files: [Arc<dyn SharedFile>; 2],
    container: u64,
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
    /// Opens the journal of a container in a directory of the device, or makes one. Gives what was not safe when it was written last, in
    /// the order of the changes.
    ///
    /// # Errors
    /// What the device says.
    pub fn open(dir: &dyn SharedFs, container: u64) -> Result<(Self, Vec<Entry>)> {
        let files = [open_file(dir, NAMES[0])?, open_file(dir, NAMES[1])?];
        let found = [Found::read(&*files[0], container)?, Found::read(&*files[1], container)?];
        let current = usize::from(found[1].generation > found[0].generation);
        let Found { generation, end, .. } = found[current];
        let is_other_empty = found[1 - current].entries.is_empty();
        let mut journal =
            Self { files, container, generation, current, size: end, is_other_empty, pending: Vec::new() };
        if generation == 0 {
            // What others have left in it is none of this one's.
            journal.begin_file(current, u64::from_le_bytes(random_bytes()?) >> 1)?;
        }
        let [first, second] = found;
        let (older, newer) = if current == 1 { (first, second) } else { (second, first) };
        Ok((journal, older.entries.into_iter().chain(newer.entries).collect()))
    }

    /// Notes an entry; it is there when it was [written](Self::write).
    pub fn add(&mut self, entry: &Entry) {
        let encoded = entry.encode();
        self.pending.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(&checksum(self.generation, &encoded).to_le_bytes());
        self.pending.extend_from_slice(&encoded);
    }

    /// Whether all that was noted is there.
    pub fn is_written(&self) -> bool {
        self.pending.is_empty()
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
            let _ =
                self.begin_file(1 - self.current, self.generation + 1).map(|()| self.is_other_empty = false);
        }
    }

    /// All that was written before the last sync began is safe.
    pub fn end_sync(&mut self) {
        let other = &self.files[1 - self.current];
        self.is_other_empty = self.is_other_empty || other.write_at(&[0; HEADER_SIZE], 0).is_ok();
    }

    /// Nothing that was noted is needed any more.
    ///
    /// # Errors
    /// What the device says.
    pub fn clear(&mut self) -> Result<()> {
        self.pending.clear();
        self.files[1 - self.current].write_at(&[0; HEADER_SIZE], 0)?;
        self.is_other_empty = true;
        self.begin_file(self.current, self.generation + 1)
    }

    /// Adds to a file from its beginning.
    fn begin_file(&mut self, number: usize, generation: u64) -> Result<()> {
        let mut header = [0; HEADER_SIZE];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.container.to_le_bytes());
        header[16..].copy_from_slice(&generation.to_le_bytes());
        self.files[number].write_at(&header, 0)?;
        (self.current, self.size, self.generation) = (number, HEADER_SIZE as u64, generation);
        Ok(())
    }
}

fn open_file(dir: &dyn SharedFs, name: &[u8]) -> Result<Arc<dyn SharedFile>> {
    match dir.open(name, Access::Write) {
        Err(fault) if fault.errno == Errno::ENOENT => {}
        opened => return opened,
    }
    let file = dir.create(name, 0o600)?;
    match file.allocate(Allocate::Keep, 0, ROOM) {
        // Some have no such call: then the device has room when it is needed, or not.
        Err(fault) if fault.errno != Errno::EOPNOTSUPP => Err(fault),
        _ => Ok(file),
    }
}

/// What a file has.
struct Found {
    /// 0 where it is empty.
    generation: u64,
    /// Where the next record goes.
    end: u64,
    entries: Vec<Entry>,
}

impl Found {
    fn read(file: &dyn SharedFile, container: u64) -> Result<Self> {
        let mut bytes = vec![0; file.stat()?.size as usize];
        let size = file.read_at(&mut bytes, 0)?;
        bytes.truncate(size);
        Ok(Self::parse(&bytes, container).unwrap_or(Self { generation: 0, end: 0, entries: Vec::new() }))
    }

    fn parse(bytes: &[u8], container: u64) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_SIZE)?;
        let of_container = header[..8] == MAGIC && header[8..16] == container.to_le_bytes();
        let generation = u64::from_le_bytes(*header.last_chunk()?);
        if !of_container {
            return None;
        }
        let mut entries = Vec::new();
        while let Some((entry, after)) = parse_record(rest, generation) {
            entries.push(entry);
            rest = after;
        }
        Some(Self { generation, end: (bytes.len() - rest.len()) as u64, entries })
    }
}

/// The entry of the first record, and what is behind it.
fn parse_record(bytes: &[u8], generation: u64) -> Option<(Entry, &[u8])> {
    let (head, rest) = bytes.split_at_checked(RECORD_HEAD_SIZE)?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let (encoded, rest) = rest.split_at_checked(length)?;
    let is_whole = checksum(generation, encoded) == u32::from_le_bytes(*head.last_chunk()?);
    Some((Entry::decode(encoded).filter(|_| is_whole)?, rest))
}

fn checksum(generation: u64, encoded: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&generation.to_le_bytes());
    sum.update(encoded);
    sum.take()
}
