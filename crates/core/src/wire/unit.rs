//! Messages of the unit service: bytes of units on the node where they lie.

use super::cache::Stamp;
use super::call::Run;
pub use super::space::{Sought, SpaceChange};
use crate::attr::Timestamp;
use crate::ids::{Generation, InodeId, NodeId, UnitId};
use crate::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, MESSAGE_SIZE_MAX, UNIT_SIZE};
use crate::ranges::RangeSet;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where the bytes of a unit come from when the node does not hold them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Nowhere: bytes never written are zeros (job-shared, node-local).
    Zeros,
    /// The file of the shared file system at this path, relative to the shared directory.
    Shared {
        /// Relative path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Nodes that may have the bytes in memory, and were not asked: they are before that file is read.
        holders: Vec<NodeId>,
    },
}

/// Most units in one [`UnitRequest::Load`].
pub const LOAD_UNITS_MAX: usize = 64;

/// A request about bytes of units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitRequest {
    /// Writes the payload, which has the bytes of `ranges` one after another. Acknowledged when every later read sees
    /// it; it is durable after [`UnitRequest::Sync`]. The bytes are dirty when the inode is a cached one.
    Write {
        /// Which unit.
        unit: UnitId,
        /// Where in the unit they go.
        ranges: RangeSet,
        /// Cached inodes: the generation that the writer opened; others: 0.
        generation: Generation,
    },
    /// Reads `length` bytes at `offset` in the unit; the payload of the reply has exactly that many bytes.
    Read {
        /// Which unit.
        unit: UnitId,
        /// Offset in the unit, in bytes.
        offset: u32,
        /// Number of bytes; `offset + length` is at most the size of a unit.
        length: u32,
        /// Clean bytes of an older generation are dropped first (cached inodes).
        generation: Generation,
        /// For bytes that the node does not hold.
        backing: Backing,
    },
    /// Makes all acknowledged writes to the inode's units on this node safe: in the kernel's hands
    /// (`durable == false`, survives the death of the agent) or on the device (`durable`, survives power loss).
    Sync {
        /// Which file.
        inode: InodeId,
        /// On the device?
        durable: bool,
    },
    /// Drops all bytes of the inode at and after `size` on this node and gives their space back.
    Truncate {
        /// Which file.
        inode: InodeId,
        /// New size of the file, in bytes.
        size: u64,
    },
    /// Writes dirty bytes of the inode on this node to the shared file and fsyncs it; they become clean with
    /// [`UnitRequest::MarkClean`]. One request flushes at most [`FLUSH_UNITS_MAX`] units. Sent by the coordinator of
    /// the file only.
    Flush {
        /// Which file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Size of the file as far as its coordinator knows; dirty bytes beyond it are written too.
        size: u64,
        /// Version of the content: that of the bytes once they are clean.
        generation: Generation,
        /// Stops early when foreground requests come to this node.
        patient: bool,
        /// An earlier fsync of the file failed, or nobody knows how it ended: what the kernel holds of the file is
        /// dropped first, and the bytes are read back before they become clean.
        distrust: bool,
        /// All nodes that hold the file flush it in this round, and the failed fsync of one of them may be hidden from
        /// the others: what is flushed stays dirty until the coordinator has heard of all of them, and has written
        /// the digests down.
        round: u64,
        /// This node alone holds the file: when all of it is flushed, the shared file gets its size, and this time of its last change,
        /// and is made safe once; where who writes to it may do so.
        ending: Option<Ending>,
    },
    /// Which files of this coordinator have dirty bytes on this node.
    DirtyInodes {
        /// The coordinator.
        coordinator: NodeId,
        /// The last inode already told.
        after: InodeId,
        /// Most inodes in the answer.
        limit: u32,
    },
    /// Digests of the inode's units on this node as they are on the shared file system now.
    Digest {
        /// Which file.
        inode: InodeId,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Size of the file.
        size: u64,
        /// The units, each in this node's care.
        units: Vec<u64>,
    },
    /// No node's fsync failed in this round: what this node flushed in it, and was not written again since, becomes
    /// clean. Refused with `ESTALE` when the node has stopped since, or has flushed or cut the file again: the bytes
    /// are dirty then.
    MarkClean {
        /// Which file.
        inode: InodeId,
        /// As it was given to [`UnitRequest::Flush`].
        round: u64,
    },
    /// Changes the space of bytes of the inode that lie on this node: of the unit of byte `start`, and each
    /// `step`th after it. Cached inodes: what the node holds is dropped, dirty bytes too; space is the shared file's.
    Space {
        /// Which file.
        inode: InodeId,
        /// What is asked for.
        change: SpaceChange,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// From one unit of the file on this node to the next.
        step: u64,
    },
    /// The first byte of its kind at or after `start`, in the units as in [`UnitRequest::Space`]. Of cached inodes
    /// only dirty bytes count as data.
    Seek {
        /// Which file.
        inode: InodeId,
        /// What is looked for.
        sought: Sought,
        /// First byte to look at.
        start: u64,
        /// From one unit of the file on this node to the next.
        step: u64,
    },
    /// Space that the inode takes on this node; of cached inodes, that of dirty bytes.
    Usage {
        /// Which file.
        inode: InodeId,
    },
    /// Where whole units of the inode lie, for programs of the same host to read them there.
    Places {
        /// Which file.
        inode: InodeId,
        /// Which units, each in this node's care; at most [`PLACES_MAX`].
        units: Vec<u64>,
        /// Clean bytes of an older generation are dropped first (cached inodes).
        generation: Generation,
    },
    /// Has the node hold units of a cached file whole, as far as the file has them. It sends no bytes.
    Load {
        /// Which file.
        inode: InodeId,
        /// Which units, at most [`LOAD_UNITS_MAX`].
        units: Vec<u64>,
        /// Size of the file, in bytes.
        size: u64,
        /// Version of the file.
        generation: Generation,
        /// Its path, relative to the shared directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Which loading this is a part of: what it has loaded it does not push out again.
        loading: u64,
    },
    /// Waits until this node has room for a write to a cached file that it has refused with `ENOSPC`: dirty files are
    /// flushed. The write itself holds a frame of this node, and a frame must not wait for the flush: requests that the
    /// flush needs may stand behind those that wait for the frame.
    MakeRoom {
        /// How often the writer has waited for room for this write before, up to [`ROOM_ATTEMPTS_MAX`].
        attempt: u32,
    },
    /// Writes what this node holds of the file, as far as it is in units with dirty bytes, to another file, which is synced; it stays dirty.
    /// Answered by `Flushed`. Sent by the coordinator of a file that is gone from the shared directory.
    Save {
        /// Which file.
        inode: InodeId,
        /// The directory below which the other file is, on every node.
        #[serde(with = "serde_bytes")]
        dir: Vec<u8>,
        /// Path of the other file below it.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Version of the content.
        generation: Generation,
    },
}

/// How often a writer waits for room before its write fails with `ENOSPC`: other writers may take the room.
pub const ROOM_ATTEMPTS_MAX: u32 = 16;

/// Where on its home's device a unit lies of which the home holds every byte. Nothing holds it there: bytes are right if no block
/// there has become free since, and theirs have their checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitPlace {
    /// Its parts, in their order, each of whole blocks of [`crate::limits::BLOCK_SIZE`] bytes.
    pub runs: Vec<Run>,
    /// The CRC-32C of each of its blocks, little-endian.
    #[serde(with = "serde_bytes")]
    pub sums: Vec<u8>,
    /// When, on the clock of the device.
    pub time: u64,
}

impl UnitPlace {
    /// Whether its parts are whole blocks, and all of a unit, each with its checksum.
    pub fn is_whole(&self) -> bool {
        let block = BLOCK_SIZE as u64;
        let is_whole =
            |run: &Run| run.at.is_multiple_of(block) && u64::from(run.length).is_multiple_of(block);
        let length: u64 = self.runs.iter().map(|run| u64::from(run.length)).sum();
        self.runs.iter().all(is_whole) && length == UNIT_SIZE as u64 && self.sums.len() == 4 * BLOCKS_PER_UNIT
    }

    /// Where the blocks lie that hold these bytes of the unit.
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

/// Most units that one [`UnitRequest::Places`] names.
pub const PLACES_MAX: usize = 32;

// Each may be in as many parts as it has blocks, of at most 15 bytes.
const _: () = assert!(PLACES_MAX * (BLOCKS_PER_UNIT * (15 + 4) + 10) < MESSAGE_SIZE_MAX);

/// Most units that one [`UnitRequest::Flush`] flushes or one [`UnitRequest::Digest`] names.
pub const FLUSH_UNITS_MAX: usize = 1024;

/// BLAKE3 of one unit of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitDigest {
    /// Which unit of the file.
    pub index: u64,
    /// Bytes of the unit, from its start, that belong to the file.
    pub length: u32,
    /// Whether the unit is the whole file: then this is the file's hash, else the chaining value of the unit
    /// as a subtree of its file.
    pub root: bool,
    /// 32 bytes.
    pub value: [u8; 32],
}

/// What a shared file gets when all of it was flushed, beside its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Time of its last change; nothing: it keeps that which it has.
    pub mtime: Option<Timestamp>,
}

/// The answer to a [`UnitRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitReply {
    /// Done.
    Done,
    /// The payload holds the bytes.
    Read,
    /// Flushed.
    Flushed {
        /// Bytes written to the shared file.
        written: u64,
        /// End in the file of the last byte written, 0 when there was none.
        end: u64,
        /// Digests of the units written, ascending: of what the shared file now holds there.
        digests: Vec<UnitDigest>,
        /// Whether dirty units are left.
        rest: bool,
        /// How the node has left the shared file, where it was asked to end it, and has.
        left: Option<Stamp>,
    },
    /// Files, ascending.
    DirtyInodes(Vec<InodeId>),
    /// Digests of the units asked for, in the same order.
    Digests(Vec<UnitDigest>),
    /// Answer to [`UnitRequest::Seek`].
    Found {
        /// Where it is; else how far was looked: the first byte of a unit on this node, or `u64::MAX`.
        at: u64,
        /// Whether it was found.
        found: bool,
    },
    /// Answer to [`UnitRequest::Usage`], in bytes.
    Usage(u64),
    /// Answer to [`UnitRequest::Places`], in the same order: none for a unit that the home does not hold whole.
    Places(Vec<Option<UnitPlace>>),
    /// Answer to [`UnitRequest::Load`], in bytes of the file.
    Loaded {
        /// There, or of holes.
        held: u64,
        /// For which the node has no room.
        left_out: u64,
    },
}
