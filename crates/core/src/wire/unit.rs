//! Messages of the unit service: data of units on their home.

use super::cache::Stamp;
use super::call::Run;
pub use super::space::{Sought, SpaceChange};
use crate::attr::Timestamp;
use crate::ids::{Generation, InodeId, NodeId, UnitId};
use crate::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, MESSAGE_SIZE_MAX, UNIT_SIZE};
use crate::placement::Layout;
use crate::ranges::RangeSet;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Source of the bytes that the home of a unit lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// None: bytes never written are zeros (job-shared, node-local).
    Zeros,
    /// The file of the shared file system at this path, relative to the shared directory.
    Shared {
        /// Relative path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Nodes that may have the bytes in memory and that the sender did not ask; the home asks them before it reads
        /// the file.
        holders: Vec<NodeId>,
    },
}

/// Largest number of units of one [`UnitRequest::Load`].
pub const LOAD_UNITS_MAX: usize = 64;

/// A request about the data of units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitRequest {
    /// Writes the payload, which has the bytes of `ranges` one after another. Once acknowledged, all later reads return
    /// it; [`UnitRequest::Sync`] makes it durable. The bytes of a cached inode become dirty.
    Write {
        /// The unit.
        unit: UnitId,
        /// The byte ranges in the unit.
        ranges: RangeSet,
        /// Cached inodes: the generation that the writer opened; others: 0.
        generation: Generation,
    },
    /// Reads `length` bytes at `offset` in the unit; the payload of the reply has exactly this length.
    Read {
        /// The unit.
        unit: UnitId,
        /// Offset in the unit, in bytes.
        offset: u32,
        /// Number of bytes; `offset + length` is at most the size of a unit.
        length: u32,
        /// Generation of the file (cached inodes): the home drops clean bytes of an older one first.
        generation: Generation,
        /// Source of bytes that the home lacks.
        backing: Backing,
    },
    /// Makes all acknowledged writes to the inode's units on this node persisted (`durable == false`) or durable.
    Sync {
        /// The file.
        inode: InodeId,
        /// Whether to sync to the device.
        durable: bool,
    },
    /// Drops all bytes of the inode at and after `size` on this node, and frees their space.
    Truncate {
        /// The file.
        inode: InodeId,
        /// New size of the file, in bytes.
        size: u64,
    },
    /// Writes dirty bytes of the inode on this node to the shared file and fsyncs it; [`UnitRequest::MarkClean`] makes
    /// them clean. One request flushes at most [`FLUSH_UNITS_MAX`] units. Only the coordinator of the file sends it.
    Flush {
        /// The file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Size of the file as its coordinator knows it; dirty bytes beyond it are written as well.
        size: u64,
        /// Generation that the bytes have once they are clean.
        generation: Generation,
        /// Whether to stop early if foreground requests arrive.
        patient: bool,
        /// Whether an earlier fsync of the file failed or has an unknown result: the home drops the page cache of the
        /// file first, and reads the bytes back before they become clean.
        distrust: bool,
        /// Number of the round in which all nodes with the file flush it. A failed fsync of one node may be invisible
        /// to the others. So flushed bytes stay dirty until the coordinator has all replies, and has recorded the
        /// digests.
        round: u64,
        /// Set if this node alone has the file: when all of it is flushed, the home sets size and modification time of
        /// the shared file, and syncs once. Skipped if the writer may not set times.
        ending: Option<FlushEnd>,
    },
    /// Requests the files of a coordinator that have dirty bytes on this node.
    DirtyInodes {
        /// The coordinator.
        coordinator: NodeId,
        /// The last inode of the previous page.
        after: InodeId,
        /// Largest number of inodes in the reply.
        limit: u32,
    },
    /// Digests of the inode's units of this node, computed from the shared file system.
    Digest {
        /// The file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Size of the file.
        size: u64,
        /// Indexes of units of this home.
        units: Vec<u64>,
    },
    /// All fsyncs of the round succeeded: bytes that this node flushed in it become clean, unless they were written
    /// again. Fails with `ESTALE` if the node has restarted since, or has flushed or truncated the file again: the
    /// bytes stay dirty.
    MarkClean {
        /// The file.
        inode: InodeId,
        /// The round of [`UnitRequest::Flush`].
        round: u64,
    },
    /// Changes the space of bytes of the inode in the units that this node serves. Cached inodes: drops the node's bytes,
    /// also dirty ones; the shared file has the space.
    Space {
        /// The file.
        inode: InodeId,
        /// The change.
        change: SpaceChange,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Layout of the file.
        layout: Layout,
    },
    /// Finds the first byte of data or hole at or after `start`, in the units as in [`UnitRequest::Space`]. Only dirty
    /// bytes of cached inodes count as data.
    Seek {
        /// The file.
        inode: InodeId,
        /// Data or hole.
        sought: Sought,
        /// First byte of the search.
        start: u64,
        /// Layout of the file.
        layout: Layout,
    },
    /// Space of the inode on this node; of cached inodes, that of dirty bytes.
    Usage {
        /// The file.
        inode: InodeId,
    },
    /// Extent locations of whole units of the inode, for direct reads by programs of the same host.
    Locations {
        /// The file.
        inode: InodeId,
        /// Indexes of units of this home, at most [`LOCATIONS_MAX`].
        units: Vec<u64>,
        /// Generation of the file (cached inodes): the home drops clean bytes of an older one first.
        generation: Generation,
    },
    /// Loads units of a cached file onto their home, up to the end of the file. The reply has no data.
    Load {
        /// The file.
        inode: InodeId,
        /// Indexes of units, at most [`LOAD_UNITS_MAX`].
        units: Vec<u64>,
        /// Size of the file, in bytes.
        size: u64,
        /// Generation of the file.
        generation: Generation,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Number of the warm-up: the home does not evict what the same one has loaded.
        loading: u64,
    },
    /// Waits until this node has space for a write to a cached file that it refused with `ENOSPC`: flushes dirty files.
    /// It is a separate message because a write holds a frame of this node, which must not wait for the flush: requests
    /// that the flush needs may queue behind requests that wait for the frame.
    WaitForSpace {
        /// Number of earlier waits for this write, up to [`SPACE_ATTEMPTS_MAX`].
        attempt: u32,
    },
    /// Writes this node's bytes of the file, from units with dirty bytes, to another file and syncs it; they stay
    /// dirty. The reply is `Flushed`. The coordinator sends it for a file that no longer exists in the shared
    /// directory.
    Save {
        /// The file.
        inode: InodeId,
        /// Directory of the other file, on every node.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// Path of the other file below it.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Generation of the content.
        generation: Generation,
    },
    /// Changes single bytes of a region's units on this node: the payload is a [`crate::patch`]. All changes of a unit
    /// take effect together.
    Patch {
        /// The file.
        inode: InodeId,
        /// Layout of the file.
        layout: Layout,
    },
    /// Adds to the little-endian 64-bit number at a byte of a unit, atomically with respect to other such requests and to
    /// [`UnitRequest::Patch`]. The reply is the number before.
    FetchAdd {
        /// The unit.
        unit: UnitId,
        /// Offset in the unit; a multiple of 8.
        offset: u32,
        /// The addend; the sum wraps.
        addend: u64,
    },
}

/// Number of waits for space after which a write fails with `ENOSPC`. Other writers may take freed space.
pub const SPACE_ATTEMPTS_MAX: u32 = 16;

/// Extent location of a unit that its home has completely. It is not locked: bytes are valid if no block there has
/// become free since `time` and their checksums match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitLocation {
    /// Its runs in order, each of whole blocks of [`crate::limits::BLOCK_SIZE`] bytes.
    pub runs: Vec<Run>,
    /// The CRC-32C of each of its blocks, little-endian.
    #[serde(with = "serde_bytes")]
    pub sums: Vec<u8>,
    /// Time of the reply on the clock of the device.
    pub time: u64,
}

impl UnitLocation {
    /// Returns true if the runs are whole blocks of a whole unit, each with its checksum.
    pub fn is_whole(&self) -> bool {
        let block = BLOCK_SIZE as u64;
        let is_whole =
            |run: &Run| run.at.is_multiple_of(block) && u64::from(run.length).is_multiple_of(block);
        let length: u64 = self.runs.iter().map(|run| u64::from(run.length)).sum();
        self.runs.iter().all(is_whole) && length == UNIT_SIZE as u64 && self.sums.len() == 4 * BLOCKS_PER_UNIT
    }

    /// The runs of the blocks that contain these bytes of the unit.
    pub fn runs_of(&self, bytes: &Range<u32>) -> impl Iterator<Item = Run> + use<'_> {
        let (block, mut before) = (BLOCK_SIZE as u32, 0);
        let wanted = bytes.start / block * block..bytes.end.next_multiple_of(block);
        self.runs.iter().filter_map(move |run| {
            let place = before..before + run.length;
            before = place.end;
            let part = place.start.max(wanted.start)..place.end.min(wanted.end);
            let at = || run.at + u64::from(part.start - place.start);
            (part.start < part.end).then(|| Run { at: at(), length: part.end - part.start })
        })
    }

    /// The checksums of these blocks.
    pub fn sums_of(&self, bytes: &Range<u32>) -> &[u8] {
        let blocks = bytes.start as usize / BLOCK_SIZE..(bytes.end as usize).div_ceil(BLOCK_SIZE);
        &self.sums[4 * blocks.start..4 * blocks.end]
    }
}

/// Largest number of units of one [`UnitRequest::Locations`].
pub const LOCATIONS_MAX: usize = 32;

// Each may have as many runs as blocks, of at most 15 bytes.
const _: () = assert!(LOCATIONS_MAX * (BLOCKS_PER_UNIT * (15 + 4) + 10) < MESSAGE_SIZE_MAX);

/// Largest number of units that one [`UnitRequest::Flush`] flushes or one [`UnitRequest::Digest`] names.
pub const FLUSH_UNITS_MAX: usize = 1024;

/// BLAKE3 of one unit of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitDigest {
    /// Index of the unit.
    pub index: u64,
    /// Number of bytes of the unit, from its start, that belong to the file.
    pub length: u32,
    /// Whether the unit is the whole file: then `value` is the file's hash, else the chaining value of the unit as a
    /// subtree of its file.
    pub root: bool,
    /// 32 bytes.
    pub value: [u8; 32],
}

/// Attributes that a shared file gets when all of it is flushed, beside its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushEnd {
    /// Modification time; `None` leaves it unchanged.
    pub mtime: Option<Timestamp>,
}

/// The reply to a [`UnitRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitReply {
    /// The request was carried out.
    Done,
    /// The payload has the bytes.
    Read,
    /// The dirty data was written to the shared file.
    Flushed {
        /// Number of bytes written to the shared file.
        written: u64,
        /// End of the last written byte in the file; 0 if there was none.
        end: u64,
        /// Digests of the written units, ascending: of the shared file's content there.
        digests: Vec<UnitDigest>,
        /// Whether dirty units remain.
        rest: bool,
        /// Stamp of the shared file after the ending, if one was requested and done.
        left: Option<Stamp>,
    },
    /// Files, ascending.
    DirtyInodes(Vec<InodeId>),
    /// Digests of the requested units, in the same order.
    Digests(Vec<UnitDigest>),
    /// Reply to [`UnitRequest::Seek`].
    Found {
        /// Offset of the result; else the end of the search: the first byte of a unit on this node, or `u64::MAX`.
        at: u64,
        /// Whether it was found.
        found: bool,
    },
    /// Reply to [`UnitRequest::Usage`], in bytes.
    Usage(u64),
    /// Reply to [`UnitRequest::Locations`], in the same order: `None` for an incomplete unit.
    Locations(Vec<Option<UnitLocation>>),
    /// Reply to [`UnitRequest::Load`], in bytes of the file.
    Loaded {
        /// Bytes that the home has, with holes.
        held: u64,
        /// Bytes for which it has no space.
        left_out: u64,
    },
    /// Reply to [`UnitRequest::FetchAdd`].
    Previous(u64),
}
