//! The index of a container: all paths, sorted, so that an open needs no scan of the lanes.
//!
//! ```text
//! pages    each  size u32 | crc32c u32 | IndexEntry ...        postcard, one after the other
//! lanes          size u32 | crc32c u32 | Vec<LaneEnd>          postcard
//! top            size u32 | crc32c u32 | Vec<PageRef>          postcard
//! footer         TMKI | format u16 | 0 u16 | container u64 | paths u64 | lanes at u64 | top at u64 | 0 u32 | crc32c of the 44 bytes before
//! ```
//!
//! Paths are ordered by directory, then by name, so that entries of a directory are adjacent.

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

/// Name of the index file in a container's directory.
pub const INDEX_NAME: &[u8] = b"index";
/// Prefix of the name of an index while it is written.
pub const NEW_PREFIX: &str = "index.new.";
/// Prefix of the names of temporary files with sorted entries.
pub const RUN_PREFIX: &str = "index.run.";

const PART_HEAD_SIZE: usize = 8;
const FOOTER_SIZE: usize = 48;
/// Approximate size of a page, in bytes.
const PAGE_SIZE: usize = 32 << 10;
/// Maximum size of a part, in bytes.
const PART_SIZE_MAX: usize = 256 << 20;
const MAGIC: [u8; 4] = *b"TMKI";
const FORMAT: u16 = 1;

/// Index entry of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// Path from the root.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Version; the highest one of a path is valid.
    pub version: u64,
    /// Lane of the entry's record.
    pub lane: LaneId,
    /// Address of the record.
    pub address: u64,
    /// Size of the record with its data, in bytes.
    pub record_size: u32,
    /// Summary for listings; `None` if the path was removed.
    pub node: Option<Brief>,
}

impl IndexEntry {
    /// Encodes the entry for a page.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The extent of the content in the entry's record, for another entry to reference.
    pub fn own_extent(&self, size: u64) -> Option<Extent> {
        let Self { lane, address, .. } = *self;
        let length = u32::try_from(size).ok().filter(|length| *length > 0)?;
        Some(Extent { start: 0, length, lane, address, skip: 0 })
    }

    /// Order by path, the newest entry of a path first.
    pub fn newest_first(&self, other: &Self) -> Ordering {
        let rank = |entry: &Self| (entry.version, entry.lane, entry.address);
        compare_paths(&self.path, &other.path).then_with(|| rank(other).cmp(&rank(self)))
    }
}

/// Attributes of a file for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    /// File type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Size of the content, in bytes.
    pub size: u64,
}

impl Brief {
    /// The summary of a node.
    pub fn of(node: &Node) -> Self {
        let Node { kind, mode, uid, gid, mtime, size, .. } = *node;
        Self { kind, mode, uid, gid, mtime, size }
    }
}

/// End of the indexed or scanned part of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEnd {
    /// The lane.
    pub lane: LaneId,
    /// Address after the last record.
    pub address: u64,
    /// Sequence number of the next record.
    pub sequence: u64,
    /// True if the writer of this incarnation has finished.
    pub is_finished: bool,
}

impl LaneEnd {
    /// The beginning of a lane, with nothing read.
    pub fn none(lane: LaneId) -> Self {
        Self { lane, address: 0, sequence: 0, is_finished: false }
    }

    /// The incarnation; 0 if the lane is empty.
    pub fn incarnation(&self) -> u32 {
        (self.sequence >> 32) as u32
    }

    /// Returns true if the writer has synced all records, as a finished writer that has put some has. If it has put none, the lane's
    /// incarnation in the header may not be durable.
    pub(super) fn is_durable(&self) -> bool {
        self.is_finished && self.sequence > first_sequence(self.incarnation()) + 1
    }
}

/// A page in the list of pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PageRef {
    /// First path of the page.
    #[serde(with = "serde_bytes")]
    first: Vec<u8>,
    offset: u64,
}

/// Order of paths: by directory, then by name.
pub fn compare_paths(one: &[u8], other: &[u8]) -> Ordering {
    split_path(one).cmp(&split_path(other))
}

/// Encodes a part: size and checksum, then the content.
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
            "the index is damaged: {what}. Rebuild it from the records with `tameike agg verify --rebuild`"
        ),
    )
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Encoding into memory cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8], what: &str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| damaged(what))
}
