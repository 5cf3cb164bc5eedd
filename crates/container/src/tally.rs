//! Progress and failures of one pack, copy, extract, export or verify, counted by all of its threads.

use crate::display::shown;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::Fault;

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

    pub(crate) fn lose(&self, what: &'static str) {
        *self.losses.lock().entry(what).or_default() += 1;
    }

    pub(crate) fn add_bytes(&self, count: u64) {
        self.bytes.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, path: &[u8], fault: &Fault) {
        let (path, why) = (shown(path), fault.to_string());
        let message = if why.contains(&path) { why } else { format!("{path}: {why}") };
        self.faults.lock().push(Fault::new(fault.errno, message));
    }
}
