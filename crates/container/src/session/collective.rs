//! State that processes exchange when they open and close a container collectively.

use super::{Report, Session, SessionOptions, Snapshot};
use crate::Container;
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

impl Session {
    /// As [`Self::open`], by the [state](Self::snapshot) of another process that opens the container at the same time.
    pub fn join(fs: Arc<dyn SharedFs>, options: SessionOptions, snapshot: &Snapshot) -> Result<Self> {
        match Container::open_snapshot(fs.clone(), snapshot) {
            Some(container) => Self::of(container, fs, options),
            None => Self::open(fs, options),
        }
    }

    /// The state for other processes that open the container at the same time, so that they need not read it. Must be called before any
    /// change. `None` if they must open the container themselves.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.state.lock().container.snapshot()
    }

    /// As [`Self::finish`], and returns a report for a process that finishes later ([`Self::take_report`]); `None` if it is too large.
    pub fn finish_reporting(self) -> Result<Option<Report>> {
        let (container, ends) = self.end()?;
        Ok(if ends.is_empty() { None } else { container.report(&ends) })
    }

    /// Adds the entries of another process that has finished, which then need no scan.
    pub fn take_report(&self, report: Report) {
        self.state.lock().container.take_report(report);
    }
}
