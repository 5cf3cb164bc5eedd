//! Trees of files in containers (`tameike_store::container`): packed by many threads, copied, brought back, proven.
//!
//! Nothing here knows what a job is: it works straight on any file system. [`packed`] is told by its caller how others ask it.
#![forbid(unsafe_code)]

mod compact;
mod content;
mod copy;
mod export;
mod extract;
mod files;
mod indexed;
mod pack;
pub mod packed;
pub mod session;
pub mod spool;
mod tree;
mod verify;
mod view;

#[cfg(test)]
mod tests;

pub use compact::{Compacted, compact};
pub use copy::{Destination, copy};
pub use export::{Format, export};
pub use extract::extract;
pub use files::Keeps;
pub use pack::{PackOptions, pack};
pub use verify::{Verified, verify};
pub use view::ContainerTree;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::Fault;
use tameike_store::container::shown;

/// Files at most that content goes to at the same time: file systems serve several faster than one.
pub const STREAMS: usize = 4;

/// What was done, and what could not be: counted by all threads at work.
#[derive(Default)]
pub struct Tally {
    files: AtomicU64,
    bytes: AtomicU64,
    faults: Mutex<Vec<Fault>>,
    losses: Mutex<BTreeMap<&'static str, u64>>,
}

impl Tally {
    /// Paths that are done.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes of content that are done.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What could not be done, each with its path.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().clone()
    }

    /// What is missing of paths that are done, in words that follow "path" and "paths", and of how many.
    pub fn losses(&self) -> Vec<(&'static str, u64)> {
        self.losses.lock().iter().map(|(what, count)| (*what, *count)).collect()
    }

    fn lose(&self, what: &'static str) {
        *self.losses.lock().entry(what).or_default() += 1;
    }

    fn add_bytes(&self, count: u64) {
        self.bytes.fetch_add(count, Ordering::Relaxed);
    }

    fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    fn note(&self, path: &[u8], fault: &Fault) {
        let (path, why) = (shown(path), fault.to_string());
        let message = if why.contains(&path) { why } else { format!("{path}: {why}") };
        self.faults.lock().push(Fault::new(fault.errno, message));
    }
}
