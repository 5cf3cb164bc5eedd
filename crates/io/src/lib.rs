//! The machine, behind traits: time, tasks, memory, disks, the network, and the few calls of the operating
//! system that need `unsafe`.
//!
//! Everything above this room takes clock, randomness, disk and fabric as parameters, so that the same code
//! runs on real hardware and in a simulated cluster. Beside `preload`, whose callers are C programs, this is the
//! only room with `unsafe`; each block says why it is sound.

mod checksum;
pub mod disk;
pub mod fabric;
pub mod fuse;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod os;
pub mod shared;
pub mod slab;

pub use checksum::{Crc32c, crc32c};
pub use os::runtime::Runtime;
pub use slab::{BlockSums, Frame, Payload, Pool, Quota, Slab, blocks_have_sums};
