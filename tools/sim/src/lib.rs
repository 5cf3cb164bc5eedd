//! A simulated cluster, driven by one seed.
//!
//! [`program::draw`] makes a program of a seed: what programs do on several nodes in the job-shared and the cache
//! view, and what goes wrong meanwhile. [`run::run`] runs it on a [`world::World`], which is the product's own code
//! over a simulated network, simulated disks and a simulated shared file system, and holds every answer against the
//! reference [`model`], which allows what `SEMANTICS.md` allows and nothing else. Same seed, same run.
//!
//! [`scale`] is apart: thousands of slim agents, of which connections, memory and load are counted.
//!
//! [`mod@walk`] runs one program over and over, and each time another of the product's calls to its disks, the
//! network and the shared file system fails.
#![forbid(unsafe_code)]

pub mod chance;
pub mod countdown;
pub mod kernel;
pub mod locking;
pub mod model;
pub mod op;
pub mod program;
pub mod run;
pub mod runner;
pub mod scale;
pub mod shrink;
pub mod trace;
pub mod tree;
pub mod walk;
pub mod world;
