//! What a node keeps: metadata in a log and a key-value store, file data in extents of one big file.
//!
//! Everything that must survive goes through the [`ledger`]: a change is a record; it is applied to the table
//! of keys and appended to the log; replaying the log after a crash gives the same table. Data goes to the
//! device before the record that names it, so the table never names bytes that are not there.
#![forbid(unsafe_code)]

pub mod check;
pub mod directory;
pub mod extent;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod ledger;
pub mod locks;
pub mod meta;
pub mod table;

pub use directory::{Options, Store, give_space_back, open_media};
pub use extent::ExtentStore;
pub use ledger::{Ledger, RecordKind};
