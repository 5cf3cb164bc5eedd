//! The memory of a shared memory region on one node, which its agent and its processes share, and the faults of a process on it.
//!
//! - [`memory`] has the three memfds of a region, and [`control`] the words in one of them.
//! - [`window`] has the memory of a remote memory window, which has no page faults.
//! - [`fault`] serves the page faults of a process: it asks the agent for absent pages, and makes twins before writes.
//!
//! [Decision 0090](../../docs/decisions/0090-shared-memory-regions.md) describes the protocol. The agent's part is in
//! `client/region`. A process can damage the memory of its own node's region only, as it can by plain stores.
#![forbid(unsafe_code)]

pub mod control;
pub mod fault;
pub mod memory;
pub mod window;
