//! What the operating system gives: clock, randomness, tasks; processes, threads and signals; namespaces and
//! mounts; local sockets that carry files.

pub mod mount;
pub mod namespace;
pub mod process;
pub mod runtime;
pub mod signal;
pub mod socket;
