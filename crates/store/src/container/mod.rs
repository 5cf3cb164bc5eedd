//! Containers: many files in a few, which any number of writers add to at the same time.
//!
//! A container is a directory with a file [`superblock::NAME`] that says how it is divided, subfiles in which writers have a lane
//! each, and a closing index. A lane is only added to, by whole records; what was synced is found again whatever happens
//! after: without the index by going through the lanes.
//!
//! The bytes are in `DESIGN.md`.

mod behind;
mod claim;
mod codec;
mod entry;
mod file;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod geometry;
mod index;
mod links;
mod listing;
mod notice;
pub mod outside;
mod reader;
mod record;
mod records;
mod scan;
mod shown;
mod streams;
pub mod subfile;
pub mod superblock;
#[cfg(test)]
mod tests;
mod writer;

pub use behind::Given;
pub use claim::{FIRST_OF_HOSTS, WriterId};
pub use codec::Codec;
pub use entry::{Content, Entry, Extent, Node, Xattr, check_path, split_path};
pub use file::{FileReader, Opener, Show};
pub use geometry::{Geometry, LaneId};
pub use index::{Brief, IndexBuilder, IndexEntry, LaneEnd, compare_paths};
pub use links::follow_links;
pub use listing::Listing;
pub use reader::{Container, Damage, Known, Report, Walk};
pub use shown::{quoted, shown};
pub use superblock::Superblock;
pub use writer::{LaneWriter, Put, UnsafePart};
