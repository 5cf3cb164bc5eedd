//! The services of a node: metadata, locks, units, cached files with their drain, regions, and membership.
//!
//! Services serve the messages of `tameike_core::wire`. They know neither the transport nor the client.
#![forbid(unsafe_code)]

pub mod cache;
mod flush_end;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod holders;
pub mod lock;
pub mod meta;
pub mod region;
mod replay;
pub mod replica;
pub mod unit;

pub use replay::replay;
