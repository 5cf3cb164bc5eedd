//! Mirrors: a second place for the shared directory of a job, kept by the job's driver.
//!
//! ```text
//! agents             driver                                        host of the mirror
//!   | changed paths --->| pending ----> session ---- orders ----------->| receive ---> directory
//!   |<- acknowledged ---|               (reads the shared directory) <--| commits: durable
//! ```
//!
//! The agents report which paths have changed. The driver's thread ([`worker`]) reads their current state from the shared directory, and
//! sends it to `tameike receive` ([`receive`]), over ssh or here. After a cut, the driver connects again and repeats what the receiver has not committed.
//! The thread never blocks the driver's loop.
//!
//! Limits: changes of programs outside the job are mirrored only by comparisons. A comparison takes files with the same size and mtime as
//! equal, unless it compares checksums. Hard links become separate files. Devices and owners are mirrored as far as the receiver's user
//! may set them.

mod apply;
mod command;
mod compare;
mod connection;
pub mod fuzz;
mod known;
mod outcome;
mod pending;
mod protocol;
mod receive;
mod session;
mod source;
pub mod target;
mod transfer;
mod worker;

pub use command::{mirror, receiver};
pub use outcome::{advice, messages};
pub use receive::receive;
pub use worker::{Mirror, MirrorEnd, MirrorEvent, MirrorPlan, MirrorStatus};
