//! Records: what a lane consists of.
//!
//! ```text
//!  0      4        6      7      8            16          20      24           32
//! +------+--------+------+------+------------+-----------+-------+------------+------------+
//! | TREC | format | kind | codec| container  | subfile   | lane  | address    | sequence   |
//! |      | u16    | u8   | u8   | u64        | u32       | u32   | u64        | u64        |
//! +------+--------+------+------+------------+-----------+-------+------------+------------+
//!  40          44         48       52         56         60       64
//! +-----------+----------+--------+----------+----------+--------+-------+----------------+------+---------+
//! | entry     | chunks   | data   | kept     | unsafe   | crc32c | entry | chunks         | data | zeros   |
//! | size u32  | u32      | size   | size u32 | size u32 |        |       | {size, crc32c} | kept | to a    |
//! |           |          | u32    |          |          |        |       | u32, u32       | so   | multiple|
//! +-----------+----------+--------+----------+----------+--------+-------+----------------+------+---------+
//! ```
//!
//! Numbers are little-endian. The head is all before the data; its checksum is of all of it but itself. Data is kept in chunks of
//! [`CHUNK_SIZE`], each by itself: as they are, or made smaller by `codec` where their size says so. A chunk's checksum is of the bytes that
//! are kept. "sequence" has the life of the lane in its upper half, and the record's number in that life, from 0 on, in its lower one. "unsafe
//! size" tells how many bytes of the life before this record were not known to be safe when it was made (4 GiB less one may be more). A record lies within a block; the next one begins at the next multiple of [`ALIGNMENT`].

use super::codec::{Codec, Packer};
use super::entry::Entry;
use super::geometry::LaneId;
use super::superblock::BLOCK_SIZE_MAX;
use std::borrow::Cow;
use std::ops::Range;
use tameike_core::{Errno, Fault, Result};
use tameike_io::{Crc32c, crc32c};

/// Where records begin.
pub const ALIGNMENT: u32 = 64;
/// Bytes of data that have a checksum of their own, and are made smaller by themselves.
pub const CHUNK_SIZE: u32 = 256 << 10;
/// Size of what comes before the entry.
pub const FIXED_SIZE: usize = 64;

const MAGIC: [u8; 4] = *b"TREC";
const FORMAT: u16 = 1;
const SUM_AT: usize = 60;
const CHUNK_ENTRY_SIZE: usize = 8;
/// Largest encoded entry, in bytes: of a file in some hundred thousand pieces.
pub const ENTRY_SIZE_MAX: usize = 4 << 20;
const HEAD_SIZE_MAX: usize =
    FIXED_SIZE + ENTRY_SIZE_MAX + BLOCK_SIZE_MAX as usize / CHUNK_SIZE as usize * CHUNK_ENTRY_SIZE;

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A change of a path, and maybe the content of its file.
    Entry,
    /// Bytes of a file, which an entry names.
    Data,
    /// Nothing: the rest of the block is not used.
    Rest,
    /// Nothing: its writer has ended, and all before it in its life is safe.
    End,
}

/// One record's place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The container's number.
    pub container: u64,
    /// Whose it is.
    pub lane: LaneId,
    /// Where it begins.
    pub address: u64,
    /// In the upper half the life of the lane that it belongs to, in the lower one its number among those of that life.
    pub sequence: u64,
}

impl Place {
    /// The life of the lane that it belongs to.
    pub fn life(&self) -> u32 {
        (self.sequence >> 32) as u32
    }
}

/// The number of the first record of a life.
pub fn first_sequence(life: u32) -> u64 {
    u64::from(life) << 32
}

/// A chunk of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes that are kept of it.
    pub kept: u32,
    /// Their checksum.
    pub sum: u32,
}

/// What the head of a record tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is for.
    pub kind: Kind,
    /// What has made its chunks smaller, those that are.
    pub codec: Codec,
    /// Its place.
    pub place: Place,
    /// The change that it is of, unless it has data alone.
    pub entry: Option<Entry>,
    /// Bytes of data.
    pub data_size: u32,
    /// Bytes that are kept of these.
    pub kept_size: u32,
    /// Of all chunks of the data.
    pub chunks: Vec<Chunk>,
    /// Bytes before the data.
    pub size: u32,
    /// Bytes of its life before it that were not known to be safe.
    pub unsafe_size: u32,
}

impl Head {
    /// Its writer has known that all of its life before this address is safe.
    pub fn safe_end(&self) -> u64 {
        match self.unsafe_size {
            u32::MAX => 0,
            size => self.place.address.saturating_sub(size.into()),
        }
    }

    /// Bytes until the next record.
    pub fn span(&self) -> u64 {
        u64::from(self.size + self.kept_size).next_multiple_of(ALIGNMENT.into())
    }

    /// The bytes of data in a chunk.
    pub fn chunk_range(&self, chunk: usize) -> Range<u32> {
        let start = chunk as u32 * CHUNK_SIZE;
        start..(start + CHUNK_SIZE).min(self.data_size)
    }

    /// Where in the record what is kept of a chunk lies.
    pub fn kept_range(&self, chunk: usize) -> Range<usize> {
        let start = self.size + self.chunks[..chunk].iter().map(|chunk| chunk.kept).sum::<u32>();
        start as usize..(start + self.chunks[chunk].kept) as usize
    }
}

/// Size of the head of a record with an entry of this encoded size and so much data.
pub fn head_size(entry: usize, data: usize) -> usize {
    FIXED_SIZE + entry + data.div_ceil(CHUNK_SIZE as usize) * CHUNK_ENTRY_SIZE
}

/// The data of a record, as it is kept.
#[derive(Default)]
pub struct Payload<'a> {
    codec: Codec,
    size: usize,
    chunks: Vec<Chunk>,
    kept: Cow<'a, [u8]>,
}

impl<'a> Payload<'a> {
    /// Of `data`, with those chunks made smaller for which that pays.
    pub fn new(data: &'a [u8], packer: &mut Packer) -> Self {
        let (mut kept, mut chunks, mut codec) = (Vec::new(), Vec::new(), Codec::None);
        let is_tried = packer.codec() != Codec::None;
        for chunk in data.chunks(CHUNK_SIZE as usize) {
            let start = kept.len();
            if packer.pack(chunk, &mut kept) {
                codec = packer.codec();
            } else if is_tried {
                kept.extend(chunk);
            }
            let bytes = if is_tried { &kept[start..] } else { chunk };
            chunks.push(Chunk { kept: bytes.len() as u32, sum: crc32c(bytes) });
        }
        let kept = if codec == Codec::None { Cow::Borrowed(data) } else { Cow::Owned(kept) };
        Self { codec, size: data.len(), chunks, kept }
    }

    /// Bytes that are kept.
    pub fn kept_size(&self) -> usize {
        self.kept.len()
    }
}

/// Appends a record to `into`.
pub fn encode(
    into: &mut Vec<u8>,
    kind: Kind,
    place: &Place,
    unsafe_size: u32,
    entry: &[u8],
    payload: &Payload<'_>,
) {
    let start = into.len();
    into.extend(MAGIC);
    into.extend(FORMAT.to_le_bytes());
    into.extend([kind as u8, payload.codec as u8]);
    into.extend(place.container.to_le_bytes());
    into.extend(place.lane.subfile.to_le_bytes());
    into.extend(place.lane.lane.to_le_bytes());
    into.extend(place.address.to_le_bytes());
    into.extend(place.sequence.to_le_bytes());
    for size in [entry.len(), payload.chunks.len(), payload.size, payload.kept.len()] {
        into.extend((size as u32).to_le_bytes());
    }
    into.extend(unsafe_size.to_le_bytes());
    into.extend([0; 4]);
    into.extend(entry);
    for chunk in &payload.chunks {
        into.extend(chunk.kept.to_le_bytes());
        into.extend(chunk.sum.to_le_bytes());
    }
    let sum = head_sum(&into[start..]);
    into[start + SUM_AT..start + FIXED_SIZE].copy_from_slice(&sum.to_le_bytes());
    into.extend(&*payload.kept);
    into.resize(start + (into.len() - start).next_multiple_of(ALIGNMENT as usize), 0);
}

/// Makes bytes say that they are a record of a place, with the right checksum.
#[cfg(feature = "fuzz")]
pub(crate) fn sign(bytes: &mut [u8], place: &Place) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[8..16].copy_from_slice(&place.container.to_le_bytes());
    bytes[16..20].copy_from_slice(&place.lane.subfile.to_le_bytes());
    bytes[20..24].copy_from_slice(&place.lane.lane.to_le_bytes());
    bytes[24..32].copy_from_slice(&place.address.to_le_bytes());
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

/// What stands where a record may begin.
#[derive(Debug)]
pub enum Found {
    /// Nothing was ever written there.
    Blank,
    /// A record.
    Record(Box<Head>),
    /// The first bytes of a head of so many.
    Part(usize),
    /// Something else, and why it is no record of this place.
    Damaged(&'static str),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// What `bytes`, at least [`FIXED_SIZE`] from the address `place` on, begin with. Whatever number the record has is right.
pub fn decode(bytes: &[u8], place: &Place) -> Found {
    if bytes[..FIXED_SIZE].iter().all(|&byte| byte == 0) {
        return Found::Blank;
    }
    if bytes[..4] != MAGIC {
        return Found::Damaged("it does not begin as a record");
    }
    if bytes[4..6] != FORMAT.to_le_bytes() {
        return Found::Damaged("it has a format that this program does not know");
    }
    let kind = match bytes[6] {
        0 => Kind::Entry,
        1 => Kind::Data,
        2 => Kind::Rest,
        3 => Kind::End,
        _ => return Found::Damaged("it is of no known kind"),
    };
    let Some(codec) = Codec::of_byte(bytes[7]) else {
        return Found::Damaged("its data was made smaller in a way that this program does not know");
    };
    let [entry_size, chunk_count, data_size, kept_size, unsafe_size] =
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
    let told =
        Place { container: u64_at(bytes, 8), lane, address: u64_at(bytes, 24), sequence: u64_at(bytes, 32) };
    if (Place { sequence: place.sequence, ..told }) != *place {
        return Found::Damaged("it belongs to another place");
    }
    let entry_end = FIXED_SIZE + entry_size as usize;
    let chunks: Vec<_> = bytes[entry_end..size]
        .chunks_exact(CHUNK_ENTRY_SIZE)
        .map(|chunk| Chunk { kept: u32_at(chunk, 0), sum: u32_at(chunk, 4) })
        .collect();
    let entry = match kind {
        Kind::Entry => match Entry::decode(&bytes[FIXED_SIZE..entry_end]) {
            Some(entry) => Some(entry),
            None => return Found::Damaged("its entry cannot be read"),
        },
        Kind::Data | Kind::Rest | Kind::End => None,
    };
    let head = Head {
        kind,
        codec,
        place: told,
        entry,
        data_size,
        kept_size,
        chunks,
        size: size as u32,
        unsafe_size,
    };
    let fits = |chunk: usize| match head.chunks[chunk].kept as usize {
        kept if codec == Codec::None => kept == head.chunk_range(chunk).len(),
        kept => kept <= head.chunk_range(chunk).len(),
    };
    let all: u64 = head.chunks.iter().map(|chunk| u64::from(chunk.kept)).sum();
    if u64::from(kept_size) != all || !(0..head.chunks.len()).all(fits) {
        return Found::Damaged("its sizes contradict each other");
    }
    Found::Record(Box::new(head))
}

/// Makes sure that a chunk is what it was.
///
/// # Errors
/// `EIO` when it is not.
pub fn check_chunk(head: &Head, chunk: usize, kept: &[u8]) -> Result<()> {
    let told = head.chunks[chunk];
    if kept.len() != told.kept as usize || crc32c(kept) != told.sum {
        let Place { lane, address, .. } = head.place;
        let message =
            format!("chunk {chunk} of the record at {address} in {lane} is damaged: its checksum is wrong");
        return Err(Fault::new(Errno::EIO, message));
    }
    Ok(())
}
