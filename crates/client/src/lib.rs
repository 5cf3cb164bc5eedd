//! The client side of the file system, called by every frontend.
//!
//! One [`vfs::Vfs`] per view and node turns file operations into requests to the nodes that hold names and data. This crate does not depend
//! on FUSE, the ring or the server.
#![forbid(unsafe_code)]

pub mod cache;
pub mod data;
mod directory;
#[cfg(test)]
mod fixtures;
mod handles;
mod kernel_pages;
pub mod local;
pub mod lock_calls;
pub mod locks;
pub mod passthrough;
pub mod region;
mod replies;
pub mod reported_sizes;
pub mod shared;
mod types;
pub mod vfs;
