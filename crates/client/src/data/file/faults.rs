//! Failures of acknowledged writes, reported once to each handle that writes.

use super::FileData;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Errno, Fault, Result};

/// Failures of writes to one file that were acknowledged.
#[derive(Default)]
pub(super) struct WriteFaults {
    last: Option<Fault>,
    /// Counts them.
    count: u64,
    /// Of how many of them some handle has got a report.
    reported: u64,
}

impl WriteFaults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.last = Some(fault);
        self.count += 1;
    }
}

/// The failures of a file's writes that one handle has got a report of.
pub struct ReportedFaults {
    count: AtomicU64,
    /// Failures before the handle was opened.
    opened: u64,
}

impl FileData {
    /// The failures that count as reported to a handle that is opened now. What no handle has got a report of yet, it gets, too,
    /// as on Linux.
    pub fn reported_faults(&self) -> ReportedFaults {
        let faults = &self.state.lock().faults;
        ReportedFaults { count: AtomicU64::new(faults.reported), opened: faults.count }
    }

    /// Reports failures of earlier writes that were not yet reported to the handle.
    ///
    /// # Errors
    /// The last failure.
    pub fn report_faults(&self, reported: &ReportedFaults) -> Result<()> {
        let faults = &mut self.state.lock().faults;
        if reported.count.swap(faults.count, Ordering::AcqRel) == faults.count {
            return Ok(());
        }
        faults.reported = faults.count;
        faults.last.clone().map_or(Ok(()), Err)
    }

    /// Fails when a home was full since the handle was opened, and that was not reported to it yet: a further write would fail, too.
    /// The failure still has to be reported at the end.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn check_full(&self, reported: &ReportedFaults) -> Result<()> {
        let faults = &self.state.lock().faults;
        let known = reported.count.load(Ordering::Acquire).max(reported.opened);
        match &faults.last {
            Some(fault) if fault.errno == Errno::ENOSPC && known != faults.count => Err(fault.clone()),
            _ => Ok(()),
        }
    }
}
