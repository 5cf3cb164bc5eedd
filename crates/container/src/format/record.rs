//! Records, of which lanes consist.
//!
//! ```text
//!  0      4        6      7      8            16          20      24           32
//! +------+--------+------+------+------------+-----------+-------+------------+------------+
//! | TREC | format | kind | codec| container  | subfile   | lane  | address    | sequence   |
//! |      | u16    | u8   | u8   | u64        | u32       | u32   | u64        | u64        |
//! +------+--------+------+------+------------+-----------+-------+------------+------------+
//!  40          44         48       52         56         60       64
//! +-----------+----------+--------+----------+----------+--------+-------+----------------+--------+---------+
//! | entry     | chunks   | data   | stored   | unsynced | crc32c | entry | chunks         | data   | zeros   |
//! | size u32  | u32      | size   | size u32 | size u32 |        |       | {size, crc32c} | as     | to a    |
//! |           |          | u32    |          |          |        |       | u32, u32       | stored | multiple|
//! +-----------+----------+--------+----------+----------+--------+-------+----------------+--------+---------+
//! ```
//!
//! - Numbers are little-endian. The head is everything before the data; its checksum covers the rest of the head.
//! - Data is stored in chunks of [`CHUNK_SIZE`], each compressed with `codec` if its stored size is smaller than its size. A chunk's checksum
//!   covers the stored bytes.
//! - "sequence" has the incarnation of the lane in its upper half, and the number of the record in that incarnation, from 0, in its lower one.
//! - "unsynced size" is the number of bytes of the incarnation before this record that were not known to be durable when the record was
//!   encoded. The maximum, 2^32 - 1, means that many or more.
//! - A record lies within a block. The next one begins at the next multiple of [`ALIGNMENT`].

use super::codec::{Codec, Packer};
use super::entry::Entry;
use super::geometry::LaneId;
use super::superblock::BLOCK_SIZE_MAX;
use std::borrow::Cow;
use std::ops::Range;
use tameike_core::{Errno, Fault, Result};
use tameike_io::{Crc32c, crc32c};

/// Alignment of records, in bytes.
pub const ALIGNMENT: u32 = 64;
/// Bytes of data per checksum; also the unit of compression.
pub const CHUNK_SIZE: u32 = 256 << 10;
/// Size of the fixed part of a head, which precedes the entry.
pub const FIXED_SIZE: usize = 64;

const MAGIC: [u8; 4] = *b"TREC";
const FORMAT: u16 = 1;
const SUM_AT: usize = 60;
const CHUNK_ENTRY_SIZE: usize = 8;
/// Maximum size of an encoded entry, in bytes: enough for a few hundred thousand extents.
pub const ENTRY_SIZE_MAX: usize = 4 << 20;
const HEAD_SIZE_MAX: usize =
    FIXED_SIZE + ENTRY_SIZE_MAX + BLOCK_SIZE_MAX as usize / CHUNK_SIZE as usize * CHUNK_ENTRY_SIZE;

/// Purpose of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A change of a path, with the content of the file or without it.
    Entry,
    /// Content of a file, referenced by an entry.
    Data,
    /// Unused rest of the block.
    Rest,
    /// The writer has finished; all records of its incarnation before this one are durable.
    End,
}

impl Kind {
    /// Decodes the kind byte of a record.
    fn of_byte(byte: u8) -> Option<Self> {
        [Self::Entry, Self::Data, Self::Rest, Self::End].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the container.
    pub container: u64,
    /// Lane of the record.
    pub lane: LaneId,
    /// Address in the lane.
    pub address: u64,
    /// Incarnation of the lane in the upper half, number of the record in that incarnation in the lower one.
    pub sequence: u64,
}

impl Position {
    /// Incarnation of the lane.
    pub fn incarnation(&self) -> u32 {
        (self.sequence >> 32) as u32
    }
}

/// The sequence number of the first record of an incarnation.
pub fn first_sequence(incarnation: u32) -> u64 {
    u64::from(incarnation) << 32
}

/// A chunk of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Kept size in bytes.
    pub stored: u32,
    /// Checksum of the stored bytes.
    pub sum: u32,
}

/// The decoded head of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Purpose of the record.
    pub kind: Kind,
    /// Compression of those chunks that are compressed.
    pub codec: Codec,
    /// Position of the record in the container.
    pub position: Position,
    /// The entry, of records of kind [`Kind::Entry`].
    pub entry: Option<Entry>,
    /// Size of the data, uncompressed.
    pub data_size: u32,
    /// Kept size of the data.
    pub stored_size: u32,
    /// Chunks of the data.
    pub chunks: Vec<Chunk>,
    /// Size of the head.
    pub size: u32,
    /// Bytes of the incarnation before this record that were not known to be durable.
    pub unsynced_size: u32,
}

impl Head {
    /// The address before which the writer knew all records of its incarnation to be durable.
    pub fn durable_end(&self) -> u64 {
        match self.unsynced_size {
            u32::MAX => 0,
            size => self.position.address.saturating_sub(size.into()),
        }
    }

    /// Distance to the next record, in bytes.
    pub fn span(&self) -> u64 {
        u64::from(self.size + self.stored_size).next_multiple_of(ALIGNMENT.into())
    }

    /// Range of a chunk in the uncompressed data.
    pub fn chunk_range(&self, chunk: usize) -> Range<u32> {
        let start = chunk as u32 * CHUNK_SIZE;
        start..(start + CHUNK_SIZE).min(self.data_size)
    }

    /// Range of a chunk's stored bytes in the record.
    pub fn stored_range(&self, chunk: usize) -> Range<usize> {
        let start = self.size + self.chunks[..chunk].iter().map(|chunk| chunk.stored).sum::<u32>();
        start as usize..(start + self.chunks[chunk].stored) as usize
    }
}

/// Size of the head of a record with this encoded entry size and data size.
pub fn head_size(entry: usize, data: usize) -> usize {
    FIXED_SIZE + entry + data.div_ceil(CHUNK_SIZE as usize) * CHUNK_ENTRY_SIZE
}

/// Data of a record, as stored.
#[derive(Default)]
pub struct Payload<'a> {
    codec: Codec,
    size: usize,
    chunks: Vec<Chunk>,
    stored: Cow<'a, [u8]>,
}

impl<'a> Payload<'a> {
    /// Compresses those chunks of `data` for which it pays.
    pub fn new(data: &'a [u8], packer: &mut Packer) -> Self {
        let (mut stored, mut chunks, mut codec) = (Vec::new(), Vec::new(), Codec::None);
        let is_tried = packer.codec() != Codec::None;
        for chunk in data.chunks(CHUNK_SIZE as usize) {
            let start = stored.len();
            if packer.pack(chunk, &mut stored) {
                codec = packer.codec();
            } else if is_tried {
                stored.extend(chunk);
            }
            let bytes = if is_tried { &stored[start..] } else { chunk };
            chunks.push(Chunk { stored: bytes.len() as u32, sum: crc32c(bytes) });
        }
        let stored = if codec == Codec::None { Cow::Borrowed(data) } else { Cow::Owned(stored) };
        Self { codec, size: data.len(), chunks, stored }
    }

    /// Kept size in bytes.
    pub fn stored_size(&self) -> usize {
        self.stored.len()
    }
}

/// Appends a record to `into`.
pub fn encode(
    into: &mut Vec<u8>,
    kind: Kind,
    position: &Position,
    unsynced_size: u32,
    entry: &[u8],
    payload: &Payload<'_>,
) {
    let start = into.len();
    into.extend(MAGIC);
    into.extend(FORMAT.to_le_bytes());
    into.extend([kind as u8, payload.codec as u8]);
    into.extend(position.container.to_le_bytes());
    into.extend(position.lane.subfile.to_le_bytes());
    into.extend(position.lane.lane.to_le_bytes());
    into.extend(position.address.to_le_bytes());
    into.extend(position.sequence.to_le_bytes());
    for size in [entry.len(), payload.chunks.len(), payload.size, payload.stored.len()] {
        into.extend((size as u32).to_le_bytes());
    }
    into.extend(unsynced_size.to_le_bytes());
    into.extend([0; 4]);
    into.extend(entry);
    for chunk in &payload.chunks {
        into.extend(chunk.stored.to_le_bytes());
        into.extend(chunk.sum.to_le_bytes());
    }
    let sum = head_sum(&into[start..]);
    into[start + SUM_AT..start + FIXED_SIZE].copy_from_slice(&sum.to_le_bytes());
    into.extend(&*payload.stored);
    into.resize(start + (into.len() - start).next_multiple_of(ALIGNMENT as usize), 0);
}

/// Overwrites position and checksum of a record, so that it is valid at `position`.
#[cfg(feature = "fuzz")]
pub(crate) fn sign(bytes: &mut [u8], position: &Position) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[8..16].copy_from_slice(&position.container.to_le_bytes());
    bytes[16..20].copy_from_slice(&position.lane.subfile.to_le_bytes());
    bytes[20..24].copy_from_slice(&position.lane.lane.to_le_bytes());
    bytes[24..32].copy_from_slice(&position.address.to_le_bytes());
    let size = FIXED_SIZE as u64 + u64::from(u32_at(bytes, 40)) + u64::from(u32_at(bytes, 44)) * 8;
    let size = size.min(bytes.len() as u64) as usize;
    let sum = head_sum(&bytes[..size]);
    bytes[SUM_AT..FIXED_SIZE].copy_from_slice(&sum.to_le_bytes());
}

fn head_sum(head: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&head[..SUM_AT]);
    sum.update(&head[FIXED_SIZE..]);
    sum.take()
}

/// Result of decoding at an address.
#[derive(Debug)]
pub enum Found {
    /// Zeros: nothing was ever written.
    Blank,
    /// A record.
    Record(Box<Head>),
    /// The beginning of a head of this size.
    Part(usize),
    /// No valid record of this position, and the reason.
    Damaged(&'static str),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// Decodes a record at `position` from at least [`FIXED_SIZE`] bytes. The sequence number is not checked.
pub fn decode(bytes: &[u8], position: &Position) -> Found {
    if bytes[..FIXED_SIZE].iter().all(|&byte| byte == 0) {
        return Found::Blank;
    }
    if bytes[..4] != MAGIC {
        return Found::Damaged("it does not begin with the magic number of a record");
    }
    if bytes[4..6] != FORMAT.to_le_bytes() {
        return Found::Damaged("its format is unknown to this version");
    }
    let Some(kind) = Kind::of_byte(bytes[6]) else {
        return Found::Damaged("its kind is unknown");
    };
    let Some(codec) = Codec::of_byte(bytes[7]) else {
        return Found::Damaged("its codec is unknown to this version");
    };
    let [entry_size, chunk_count, data_size, stored_size, unsynced_size] =
        [40, 44, 48, 52, 56].map(|at| u32_at(bytes, at));
    let size = FIXED_SIZE as u64 + u64::from(entry_size) + u64::from(chunk_count) * CHUNK_ENTRY_SIZE as u64;
    if size > HEAD_SIZE_MAX as u64 || chunk_count != data_size.div_ceil(CHUNK_SIZE) {
        return Found::Damaged("its sizes contradict each other");
    }
    let size = size as usize;
    if bytes.len() < size {
        return Found::Part(size);
    }
    if head_sum(&bytes[..size]) != u32_at(bytes, SUM_AT) {
        return Found::Damaged("its checksum is wrong");
    }
    let lane = LaneId { subfile: u32_at(bytes, 16), lane: u32_at(bytes, 20) };
    let [container, address, sequence] = [8, 24, 32].map(|at| u64_at(bytes, at));
    let found = Position { container, lane, address, sequence };
    if (Position { sequence: position.sequence, ..found }) != *position {
        return Found::Damaged("it was written for another position");
    }
    let entry_end = FIXED_SIZE + entry_size as usize;
    let chunks: Vec<_> = bytes[entry_end..size]
        .chunks_exact(CHUNK_ENTRY_SIZE)
        .map(|chunk| Chunk { stored: u32_at(chunk, 0), sum: u32_at(chunk, 4) })
        .collect();
    let entry = match kind {
        Kind::Entry => match Entry::decode(&bytes[FIXED_SIZE..entry_end]) {
            Some(entry) => Some(entry),
            None => return Found::Damaged("its entry cannot be decoded"),
        },
        Kind::Data | Kind::Rest | Kind::End => None,
    };
    let head = Head {
        kind,
        codec,
        position: found,
        entry,
        data_size,
        stored_size,
        chunks,
        size: size as u32,
        unsynced_size,
    };
    let fits = |chunk: usize| match head.chunks[chunk].stored as usize {
        stored if codec == Codec::None => stored == head.chunk_range(chunk).len(),
        stored => stored <= head.chunk_range(chunk).len(),
    };
    let all: u64 = head.chunks.iter().map(|chunk| u64::from(chunk.stored)).sum();
    if u64::from(stored_size) != all || !(0..head.chunks.len()).all(fits) {
        return Found::Damaged("its sizes contradict each other");
    }
    Found::Record(Box::new(head))
}

/// Checks the checksum of a chunk. Fails with `EIO` if it is wrong.
pub fn check_chunk(head: &Head, chunk: usize, stored: &[u8]) -> Result<()> {
    let Chunk { stored: size, sum } = head.chunks[chunk];
    if stored.len() != size as usize || crc32c(stored) != sum {
        let Position { lane, address, .. } = head.position;
        let message =
            format!("chunk {chunk} of the record at {address} in {lane} is damaged: its checksum is wrong");
        return Err(Fault::new(Errno::EIO, message));
    }
    Ok(())
}
