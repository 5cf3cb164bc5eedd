//! The bytes of a container: superblock, subfiles, records and entries (`DESIGN.md`, *Containers*).

pub mod codec;
pub mod entry;
pub mod external;
pub mod geometry;
pub mod listing;
pub mod readme;
pub mod record;
pub mod subfile;
pub mod superblock;
