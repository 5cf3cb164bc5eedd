//! Decoding of requests and encoding of replies of the kernel's FUSE protocol (7.31 and later).
//!
//! Only operations that views serve are decoded; all others become [`Operation::Unknown`]. Every length is checked, although the
//! input comes from the kernel.

mod fields;
mod init;
mod reply;
mod request;
#[cfg(any(test, feature = "fuzz"))]
mod samples;
#[cfg(test)]
mod tests;

pub use fields::{Forgets, LockRequest, Malformed};
pub use init::Init;
pub(super) use init::{FIRST_MINOR, InitRequest, MAJOR, Negotiated};
pub use reply::{Body, Directory, Lifetimes, LockState, Space, open_flag};
pub(super) use reply::{OUT_HEADER_SIZE, out_header};
pub(super) use request::{HEADER_SIZE, opcode};
pub use request::{Header, Operation, Request, WriteFlags};
#[cfg(feature = "fuzz")]
pub(crate) use samples::{fuzz, fuzz_seeds};
