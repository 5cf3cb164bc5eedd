//! The closing index: all paths of a container in their order, so that it is opened without going through its lanes.
//!
//! ```text
//! pages    each  size u32 | crc32c u32 | IndexEntry ...        postcard, one after the other
//! lanes          size u32 | crc32c u32 | Vec<LaneEnd>          postcard
//! top            size u32 | crc32c u32 | Vec<PageRef>          postcard
//! footer         TMKI | format u16 | 0 u16 | container u64 | paths u64 | lanes at u64 | top at u64 | 0 u32 | crc32c of the 44 bytes before
//! ```
//!
//! Paths are ordered by directory, then name: all of a directory stand together.

mod build;
mod read;

pub use build::{IndexBuilder, Merge};
pub use read::Index;
#[cfg(feature = "fuzz")]
pub use read::entries_of;

use crate::format::entry::{Extent, Node, split_path};
use crate::format::geometry::LaneId;
use crate::format::record::first_sequence;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::crc32c;

/// The file of a container that has it.
pub const INDEX_NAME: &[u8] = b"index";
/// Begins the name of an index while it is written.
pub const NEW_PREFIX: &str = "index.new.";
/// Begins the name of a sorted part of an index while that is made.
pub const RUN_PREFIX: &str = "index.run.";

const PART_HEAD_SIZE: usize = 8;
const FOOTER_SIZE: usize = 48;
/// Bytes of entries in a page, about.
const PAGE_SIZE: usize = 32 << 10;
/// No part is larger.
const PART_SIZE_MAX: usize = 256 << 20;
const MAGIC: [u8; 4] = *b"TMKI";
const FORMAT: u16 = 1;

/// What the index tells of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// Names from the root on.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Which of several is so: the highest.
    pub version: u64,
    /// Whose record of the entry.
    pub lane: LaneId,
    /// Its address.
    pub address: u64,
    /// Its bytes, with the data that it has.
    pub record_size: u32,
    /// What a listing shows; nothing when the path was removed.
    pub node: Option<Brief>,
}

impl IndexEntry {
    /// As a page has it.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The content that is in the record of the entry, of this size: another entry can name it.
    pub fn own_extent(&self, size: u64) -> Option<Extent> {
        let Self { lane, address, .. } = *self;
        let length = u32::try_from(size).ok().filter(|length| *length > 0)?;
        Some(Extent { start: 0, length, lane, address, skip: 0 })
    }

    /// By path; of one path, what is so comes first.
    pub fn newest_first(&self, other: &Self) -> Ordering {
        let rank = |entry: &Self| (entry.version, entry.lane, entry.address);
        compare_paths(&self.path, &other.path).then_with(|| rank(other).cmp(&rank(self)))
    }
}

/// What a listing shows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Bytes of content.
    pub size: u64,
}

impl Brief {
    /// That of a file.
    pub fn of(node: &Node) -> Self {
        let Node { kind, mode, uid, gid, mtime, size, .. } = *node;
        Self { kind, mode, uid, gid, mtime, size }
    }
}

/// How far an index has a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEnd {
    /// Which.
    pub lane: LaneId,
    /// After the last record.
    pub address: u64,
    /// Of the next one.
    pub sequence: u64,
    /// Whether nothing more comes in this life of the lane.
    pub is_finished: bool,
}

impl LaneEnd {
    /// The beginning of a lane.
    pub fn none(lane: LaneId) -> Self {
        Self { lane, address: 0, sequence: 0, is_finished: false }
    }

    /// The life that the lane was in; 0 when nothing was found of it.
    pub fn life(&self) -> u32 {
        (self.sequence >> 32) as u32
    }

    /// Whether its writer has synced all of it, as one does that ends as it should and has put something. How often a lane was begun is not safe where
    /// nothing was put.
    pub(super) fn is_safe(&self) -> bool {
        self.is_finished && self.sequence > first_sequence(self.life()) + 1
    }
}

/// A page of entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PageRef {
    /// The first path in it.
    #[serde(with = "serde_bytes")]
    first: Vec<u8>,
    offset: u64,
}

/// The order of paths: by directory, then by name.
pub fn compare_paths(one: &[u8], other: &[u8]) -> Ordering {
    split_path(one).cmp(&split_path(other))
}

/// A part with its size and checksum before it.
fn part(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PART_HEAD_SIZE + content.len());
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(crc32c(content).to_le_bytes());
    bytes.extend(content);
    bytes
}

fn damaged(what: &str) -> Fault {
    Fault::new(
        Errno::EIO,
        format!(
            "the index is damaged: {what}. `tameike agg verify --rebuild` makes a new one from the files' own records"
        ),
    )
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Into memory nothing can fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8], what: &str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| damaged(what))
}
