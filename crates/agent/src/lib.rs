//! The agent of a node: assembles services, views and frontends, and serves the commands of the driver.
//!
//! The `cli` crate owns the process, its namespaces and its mounts, and drives the [`Agent`] through [`control::AgentControl`].
#![forbid(unsafe_code)]

mod agent;
mod arbiter;
pub mod assembly;
pub mod attach;
pub mod authority;
pub mod check;
pub mod control;
pub mod files;
pub mod fuse;
mod gathering;
pub mod keepers;
mod kernel_cache;
mod measure;
mod memory;
pub mod mounted;
mod neighbours;
mod node;
mod packing;
mod reclaim;
mod ring;
mod storage;
mod views;

pub use agent::Agent;
pub use measure::Meter;
pub use memory::{MEMORY_MIN, Memory};
pub use node::{Node, ProcessState, Services};
pub use tameike_server::replay;
pub use tameike_store::release_space;
pub use views::{LocalFiles, Views};
