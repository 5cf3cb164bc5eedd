//! Progress and failures of one pack, copy, extract, export or verify, counted by all of its threads.

use crate::display::shown;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Fault, Result};

/// Counters of done and failed work, shared by all threads.
#[derive(Default)]
pub struct Tally {
    files: AtomicU64,
    bytes: AtomicU64,
    faults: Mutex<Vec<Fault>>,
    losses: Mutex<BTreeMap<&'static str, u64>>,
}

impl Tally {
    /// Number of processed paths.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes of processed content.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Failures, each with its path.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().clone()
    }

    /// Properties that processed paths lost, as texts that follow "path" and "paths", with the number of paths.
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

    /// Counts a processed path, or notes its failure.
    pub(crate) fn count(&self, path: &[u8], done: Result<()>) {
        match done {
            Ok(()) => self.add_file(),
            Err(fault) => self.note(path, &fault),
        }
    }

    pub(crate) fn note(&self, path: &[u8], fault: &Fault) {
        let (path, why) = (shown(path), fault.to_string());
        let message = if why.contains(&path) { why } else { format!("{path}: {why}") };
        self.faults.lock().push(Fault::new(fault.errno, message));
    }
}
