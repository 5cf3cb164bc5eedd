//! The file system as a node sees it: what every frontend calls.
//!
//! One [`vfs::Vfs`] per view and node turns file operations into requests to the nodes where names and data
//! live. It knows nothing of FUSE or of rings, and never names the server.
#![forbid(unsafe_code)]

pub mod cache;
pub mod data;
mod directory;
mod handles;
mod kernel_pages;
pub mod local;
pub mod lock_calls;
pub mod locks;
pub mod passthrough;
pub mod reported_sizes;
pub mod shared;
mod types;
pub mod vfs;
