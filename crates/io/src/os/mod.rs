//! Operating system interfaces: clock, randomness, tasks; processes, threads and signals; namespaces and mounts; local sockets
//! that carry files; shared memory.
//!
//! [`runtime`] has the traits that product code uses. [`system::System`] implements them for real, and [`simulated::Simulation`]
//! for tests and the simulated cluster.

pub mod arena;
pub mod descriptor;
pub mod fault_signal;
pub mod forked;
pub mod inline_blocking;
pub mod lease;
pub mod log_limit;
pub mod mapping;
pub mod mount;
pub mod namespace;
pub mod owned;
pub mod pagemap;
mod pool;
pub mod privilege;
pub mod process;
pub mod range_lock;
pub mod reactor;
pub mod runtime;
pub mod signal;
pub mod simulated;
pub mod socket;
pub mod system;
pub mod userfault;
pub mod users;
