//! Definitions that all crates share: identifiers, limits, errors, placement, and the messages between agents.
//!
//! This crate has data types and pure functions only: no I/O, no clock, no random numbers. Its only state is the current home map of a
//! [`Cluster`]. So server, client, command line and simulator agree by construction.
#![forbid(unsafe_code)]

pub mod attr;
pub mod changes;
pub mod cores;
pub mod errno;
pub mod homes;
pub mod ids;
pub mod limits;
pub mod lock_table;
pub mod name;
pub mod patch;
pub mod placement;
pub mod ranges;
pub mod receipt;
pub mod region;
pub mod spool;
pub mod wire;

pub use attr::{Attr, FileKind, Timestamp};
pub use cores::CoreSet;
pub use errno::{Errno, Fault, FaultKind, Result};
pub use homes::{HomeMap, HomeSet, MapEpoch, NodeInfo};
pub use ids::{DirOffset, Generation, HomeId, InodeId, JobId, NodeId, OperationId, Slot, UnitId, View};
pub use placement::{Cluster, Layout, UnitsOfHomes};
