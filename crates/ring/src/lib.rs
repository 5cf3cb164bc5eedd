//! The ring: file calls of programs to the agent of their node, through shared memory.
//!
//! [`client`] is the program's side, [`server`] the agent's. A call that the agent declines goes to the kernel, whose mounts of the views
//! can answer every call.
//!
//! - A call costs two copies of its bytes and, while the other side polls, no system call.
//! - A read of a granted frame ([`frames`]) costs one copy and no call to the agent.
//! - Data on a device in memory is copied from there once.
//!
//! Neither side trusts the other. A program that writes anything to the shared memory harms only itself, and a program detects that its
//! agent has failed.
#![forbid(unsafe_code)]

pub mod client;
mod extent_location;
pub mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod greeting;
mod layout;
pub mod message;
mod names;
pub mod server;
mod spin;

use tameike_core::limits::UNIT_SIZE;

/// Maximum bytes that one call moves.
pub const WINDOW_SIZE: usize = UNIT_SIZE;

#[cfg(test)]
mod tests;
