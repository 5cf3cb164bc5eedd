//! Failures of acknowledged writes, reported once to each writing handle.

use super::FileData;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Errno, Fault, Result};

/// Failures of acknowledged writes to one file.
#[derive(Default)]
pub(super) struct WriteFaults {
    last: Option<Fault>,
    /// Number of failures.
    count: u64,
    /// Number of failures that some handle has reported.
    reported: u64,
}

impl WriteFaults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.last = Some(fault);
        self.count += 1;
    }
}

/// Position of one handle among a file's write failures.
pub struct ReportedFaults {
    count: AtomicU64,
    /// Failures before the handle was opened.
    opened: u64,
}

impl FileData {
    /// Returns the position of a handle that is opened now. As on Linux, it starts at the first failure that no handle has reported.
    pub fn reported_faults(&self) -> ReportedFaults {
        let faults = &self.state.lock().faults;
        ReportedFaults { count: AtomicU64::new(faults.reported), opened: faults.count }
    }

    /// Reports the last of the failures of earlier writes that this handle has not reported yet.
    pub fn report_faults(&self, reported: &ReportedFaults) -> Result<()> {
        let faults = &mut self.state.lock().faults;
        if reported.count.swap(faults.count, Ordering::AcqRel) == faults.count {
            return Ok(());
        }
        faults.reported = faults.count;
        faults.last.clone().map_or(Ok(()), Err)
    }

    /// Fails with `ENOSPC` if a home was full since the open and the handle has not reported that yet: a further write would fail, too. The
    /// failure remains to be reported at the flush or close.
    pub fn check_full(&self, reported: &ReportedFaults) -> Result<()> {
        let faults = &self.state.lock().faults;
        let known = reported.count.load(Ordering::Acquire).max(reported.opened);
        match &faults.last {
            Some(fault) if fault.errno == Errno::ENOSPC && known != faults.count => Err(fault.clone()),
            _ => Ok(()),
        }
    }
}
