//! One agent: server, client and doors, put together on this node's machine.
//!
//! The process, its namespaces and its mounts are the command line's; it drives the [`Agent`] through
//! [`control::AgentControl`].
#![forbid(unsafe_code)]

mod agent;
pub mod assembly;
pub mod check;
pub mod control;
mod custody;
mod doors;
pub mod files;
pub mod fuse;
mod gathering;
mod kernel_cache;
mod measure;
mod memory;
pub mod mounted;
mod neighbours;
mod node;
mod packing;
mod ring;
mod storage;

pub use agent::Agent;
pub use doors::{LocalFiles, Views};
pub use measure::Meter;
pub use memory::{MEMORY_MIN, Memory};
pub use node::{Node, ProcessState, Services};
pub use storage::replay;
pub use tameike_store::give_space_back;
