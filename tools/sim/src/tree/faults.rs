//! How the simulated shared file system fails.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::simulated::Simulation;

/// What is asked of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Attributes, names, opening to read.
    Look,
    /// Bytes.
    Read,
    /// Names and attributes changed.
    Change,
    /// Bytes written, opening to write.
    Write,
    /// `fsync`.
    Sync,
}

/// Of a thousand calls, so many fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeFaults {
    /// `EIO` of anything that is read or looked at.
    pub reads: u32,
    /// `EIO` of changes and writes.
    pub writes: u32,
    /// `EIO` of `fsync`: what was not safe is gone.
    pub syncs: u32,
    /// `ENOSPC` of writes.
    pub full: u32,
    /// `EROFS` of changes and writes.
    pub read_only: bool,
}

pub(super) struct Control {
    simulation: Simulation,
    faults: Mutex<TreeFaults>,
    tears_renames: AtomicBool,
}

impl Control {
    pub fn new(simulation: Simulation) -> Self {
        Self { simulation, faults: Mutex::default(), tears_renames: AtomicBool::new(false) }
    }

    pub fn set(&self, faults: TreeFaults) {
        *self.faults.lock() = faults;
    }

    pub fn tear_renames(&self) {
        self.tears_renames.store(true, Ordering::Relaxed);
    }

    pub fn tears_renames(&self) -> bool {
        self.tears_renames.load(Ordering::Relaxed)
    }

    fn happens(&self, of_a_thousand: u32) -> bool {
        of_a_thousand > 0 && self.simulation.draw(1000) < u64::from(of_a_thousand)
    }

    pub fn call(&self, call: Call) -> Result<()> {
        let faults = *self.faults.lock();
        let is_change = matches!(call, Call::Change | Call::Write);
        let errno = match call {
            _ if is_change && faults.read_only => Errno::EROFS,
            Call::Look | Call::Read if self.happens(faults.reads) => Errno::EIO,
            Call::Change | Call::Write if self.happens(faults.writes) => Errno::EIO,
            Call::Write if self.happens(faults.full) => Errno::ENOSPC,
            _ => return Ok(()),
        };
        log::trace!("the shared file system fails a {call:?} with {}", errno.describe());
        Err(Fault::new(errno, "failed on purpose"))
    }

    /// Whether an `fsync` with something to make safe fails.
    pub fn fails_sync(&self) -> bool {
        let syncs = self.faults.lock().syncs;
        self.happens(syncs)
    }
}
