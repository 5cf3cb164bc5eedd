//! The local machine behind traits: clock, tasks, memory, disks, the shared file system, and the system calls that need `unsafe`.
//!
//! The crates above take clock, randomness and disks as parameters, so that the same code runs on real hardware
//! and in a simulated cluster. Every `unsafe` block states why it is sound.

mod checksum;
pub mod disk;
pub mod os;
pub mod shared;
pub mod slab;

pub use checksum::{Crc32c, crc32c};
pub use os::runtime::Runtime;
pub use slab::{BlockSums, Frame, Payload, Pool, Quota, Slab, blocks_have_sums};
