//! Containers: many files in a few large ones, which any number of processes write at the same time.
//!
//! A container is a directory with a superblock ([`format::superblock`]), subfiles in which each writer appends to lanes of its own,
//! and an index that is written when the last writer ends. A lane is a sequence of whole, checksummed records. Synced records are found
//! after any crash: without an index, the reader scans the lanes. `DESIGN.md` gives the bytes.
//!
//! [`session`] opens, reads and writes files in a container for one process. [`pack`], [`copy`], [`extract`], [`export`], [`verify`]
//! and [`compact`] process whole trees with many threads. The crate is independent of jobs: it works on any POSIX file system.
#![forbid(unsafe_code)]

mod compact;
mod copy;
mod display;
mod export;
mod extract;
pub mod format;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod index;
mod pack;
mod reader;
pub mod session;
mod shared_fs;
mod tally;
#[cfg(test)]
mod tests;
pub mod tree;
mod verify;
mod versions;
mod writer;

pub use compact::{Compacted, compact};
pub use copy::{Destination, copy};
pub use display::{quoted, shown};
pub use export::{Format, export};
pub use extract::extract;
pub use format::codec::Codec;
pub use format::entry::{Content, Entry, Extent, Node, Xattr, check_path, split_path};
pub use format::external::Show;
pub use format::geometry::{Geometry, LaneId};
pub use format::listing::Listing;
pub use format::superblock::Superblock;
pub use index::{Brief, IndexBuilder, IndexEntry, LaneEnd, compare_paths};
pub use pack::{PackOptions, pack};
pub use reader::file::{FileReader, Opener};
pub use reader::links::follow_links;
pub use reader::{Container, Damage, Report, Snapshot, Walk};
pub use shared_fs::ContainerTree;
pub use tally::Tally;
pub use tree::create::Preserve;
pub use verify::{Verified, verify};
pub use versions::Versions;
pub use writer::claim::{FIRST_OF_HOSTS, WriterId};
pub use writer::write_behind::HandedOverBlock;
pub use writer::{LaneWriter, Put, UnsyncedRecords};

/// Maximum number of subfiles into which one process writes content in parallel: file systems serve several files faster than one.
pub const STREAMS: usize = 4;
