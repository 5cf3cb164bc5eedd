//! The persistent store of a node: metadata in a log and a key-value table, file data in extents of a device.
//!
//! Every change of metadata is a record of the [`ledger`], applied to the table and appended to the log. Replaying the
//! log after a crash gives the same table. Data goes to the device before the record that names it, so the table never
//! names missing bytes.
#![forbid(unsafe_code)]

pub mod check;
pub mod copied;
pub mod directory;
pub mod extent;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod ledger;
pub mod locks;
pub mod meta;
mod replay;
pub mod table;

pub use directory::{Options, Store, open_media, release_space};
pub use extent::ExtentStore;
pub use ledger::{Ledger, RecordKind};
pub use replay::replay;
