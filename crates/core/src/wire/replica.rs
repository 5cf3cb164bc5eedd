//! Messages from the primary of homes to their backups.
//!
//! A backup repeats on its own store what the primary has done on its. It does so only for a primary that has the same home map.

use super::space::SpaceChange;
use crate::homes::HomeSet;
use crate::ids::{Generation, HomeId, InodeId, UnitId};
use crate::limits::{BLOCK_SIZE, MESSAGE_SIZE_MAX};
use crate::placement::Layout;
use crate::ranges::RangeSet;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Largest part of a log record, and largest sum of the parts in one message, in bytes.
pub const RECORD_BYTES_MAX: usize = MESSAGE_SIZE_MAX / 2;
/// Largest number of parts in one message.
pub const RECORD_PARTS_MAX: usize = 1024;

/// Largest number of units in one [`ReplicaRequest::Clean`].
pub const CLEAN_UNITS_MAX: usize = 256;

/// Largest number of units in one [`ReplicaRequest::OnlyDirty`], and of ranges in all of them.
pub const DIRTY_UNITS_MAX: usize = 4096;

/// Largest number of blocks in one [`ReplicaRequest::ReadBlocks`].
pub const BLOCKS_READ_MAX: u32 = (RECORD_BYTES_MAX / BLOCK_SIZE) as u32;

/// A log record of a home, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordPart {
    /// The home.
    pub home: HomeId,
    /// Number of the record among those of the home, from 1.
    pub number: u64,
    /// Offset of the part in the record, in bytes.
    pub offset: u32,
    /// Whether the record ends with this part. Otherwise the next part is in the next message.
    pub ends: bool,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// A request to the backup of homes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaRequest {
    /// Appends log records. Those of one home have ascending numbers without gaps.
    Records(Vec<RecordPart>),
    /// Writes the payload, which has the bytes of `ranges` one after another.
    Write {
        /// Home of the unit.
        home: HomeId,
        /// The unit.
        unit: UnitId,
        /// The byte ranges in the unit.
        ranges: RangeSet,
        /// Cached inodes: generation of the content; others: 0.
        generation: Generation,
    },
    /// Changes single bytes of a unit: the payload is a [`crate::patch`].
    Patch {
        /// Home of the unit.
        home: HomeId,
        /// The unit.
        unit: UnitId,
    },
    /// Sets the little-endian 64-bit number at a byte of a unit.
    SetNumber {
        /// Home of the unit.
        home: HomeId,
        /// The unit.
        unit: UnitId,
        /// Offset in the unit; a multiple of 8.
        offset: u32,
        /// The number.
        value: u64,
    },
    /// Makes bytes of units of a cached file clean, because the shared file system has them.
    Clean {
        /// The file.
        inode: InodeId,
        /// Indexes of units, at most [`CLEAN_UNITS_MAX`], each with the bytes that stay dirty.
        units: Vec<(u64, RangeSet)>,
        /// Generation of the clean bytes.
        generation: Generation,
    },
    /// Drops all bytes at and after `size` of the inode's units at `homes`.
    Truncate {
        /// The homes.
        homes: HomeSet,
        /// The file.
        inode: InodeId,
        /// New size of the file, in bytes.
        size: u64,
    },
    /// Changes the space of bytes of the inode's units at `homes`.
    Space {
        /// The homes.
        homes: HomeSet,
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
    /// Makes everything that the sender's earlier requests have changed durable.
    Sync,
    /// Drops the records that the receiver has of a home which the sender copies to it now, and units of cached files. Other units
    /// stay until they are examined, changed, or dropped by `EndCopy`. Reply: `CopyBegun`.
    BeginCopy {
        /// The home.
        home: HomeId,
    },
    /// Sets entries of the receiver's table, which belong to a home that the sender copies to it.
    CopyEntries {
        /// The home.
        home: HomeId,
        /// Keys and values, of at most [`RECORD_BYTES_MAX`] bytes together, unless there is only one.
        entries: Vec<(ByteBuf, ByteBuf)>,
    },
    /// Verifies a unit, and computes checksums of it to compare with the sender's. Reply: `Examined`.
    Examine {
        /// Home of the unit.
        home: HomeId,
        /// The unit.
        unit: UnitId,
        /// The dirty bytes of a cached file at the sender. All bytes of other files, or, for an exact comparison, those that the sender has.
        data: RangeSet,
        /// Whether the copies must have the same bytes, and not only the same content.
        is_exact: bool,
    },
    /// Reads blocks of a unit. Reply: `Blocks`.
    ReadBlocks {
        /// Home of the unit.
        home: HomeId,
        /// The unit.
        unit: UnitId,
        /// The first block.
        first: u32,
        /// Number of blocks, at most [`BLOCKS_READ_MAX`].
        count: u32,
    },
    /// Computes a digest of the table's entries of a home. Reply: `Digest`.
    DigestEntries {
        /// The home.
        home: HomeId,
    },
    /// Makes all bytes of cached files at a home clean but these: an earlier primary may have reached only some backups when a flush ended.
    OnlyDirty {
        /// The home.
        home: HomeId,
        /// Units, at most [`DIRTY_UNITS_MAX`], with the bytes that are dirty on the primary.
        units: Vec<(UnitId, RangeSet)>,
    },
    /// Drops the units of a home that the receiver had when the copy began, and that the sender has neither examined nor changed since.
    EndCopy {
        /// The home.
        home: HomeId,
    },
}

/// The reply to a [`ReplicaRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaReply {
    /// The backup has made the change.
    Done,
    /// The records are appended, but those of these homes: their numbers do not follow the last one of this backup.
    Appended {
        /// The homes.
        differing: Vec<HomeId>,
    },
    /// What the backup has of a unit.
    Examined {
        /// CRC-32C of each block, little-endian. Bytes that are not requested, damaged or missing count as zero.
        #[serde(with = "serde_bytes")]
        sums: Vec<u8>,
        /// BLAKE3 digest of the same bytes.
        digest: [u8; 32],
        /// Requested bytes in damaged blocks, and, in an exact comparison, those that the backup lacks.
        bad: RangeSet,
        /// Bytes that were not requested, in an exact comparison.
        surplus: RangeSet,
    },
    /// The content of blocks; bytes that the backup lacks are zero.
    Blocks(ByteBuf),
    /// The entries of a home.
    Digest {
        /// Number of the last record of the home.
        number: u64,
        /// BLAKE3 digest of the entries.
        digest: [u8; 32],
    },
    /// The copy of a home has begun.
    CopyBegun {
        /// The backup has units of the home, which may be those of the primary.
        has_units: bool,
    },
}
