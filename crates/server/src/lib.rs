//! The services of a node: names and inodes, locks, units, cached files and their drain, membership.
//!
//! Services answer the messages of `tameike_core::wire`; they never know who asks, and never name the client.
#![forbid(unsafe_code)]

pub mod cache;
mod ending;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod holders;
pub mod lock;
pub mod meta;
pub mod unit;
