//! Deterministic simulation of a cluster: one seed decides every event of a run.
//!
//! [`program::draw`] generates a program from a seed: the calls of application processes on several nodes, in the job-shared and the
//! cache view, and the faults to inject. [`run::run`] executes it on a [`world::World`]: the product's code over a simulated network,
//! simulated disks and a simulated shared file system. It compares every reply with the reference model, which allows exactly
//! what `SEMANTICS.md` allows.
//!
//! [`region`] does the same for shared memory regions. [`mod@walk`] repeats one program and fails another call to a disk, the network or the shared file system in each run. [`scale`]
//! runs thousands of small agents and counts their connections, memory and load.
#![forbid(unsafe_code)]

pub mod countdown;
pub mod kernel;
mod locking;
mod model;
pub mod op;
pub mod program;
pub mod region;
mod rng;
pub mod run;
pub mod runner;
pub mod scale;
pub mod shrink;
pub mod trace;
pub mod tree;
pub mod walk;
pub mod world;

pub use model::pattern_byte;
