//! The ring: calls of a program's files to the agent of its node, through memory that both share.
//!
//! [`client`] is the end of the program, [`server`] that of the agent. What a program asks for that way and is declined,
//! it asks the kernel for, whose mounts of the views answer everything. A call costs two copies of its bytes and, while
//! the other side is awake, no call of the system; a read of what the agent has lent ([`frames`]) costs one copy, and no call at all. What
//! lies on a device in memory is copied from there, once.
//!
//! Neither end trusts the other: whatever a program writes in what it shares hurts itself alone, and a program is told of
//! an agent that is gone.
#![forbid(unsafe_code)]

pub mod client;
pub mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod greeting;
mod layout;
pub mod message;
mod names;
mod placed;
pub mod server;
mod spin;

use tameike_core::limits::UNIT_SIZE;

/// Bytes that one call moves, at most.
pub const WINDOW_SIZE: usize = UNIT_SIZE;

#[cfg(test)]
mod tests;
