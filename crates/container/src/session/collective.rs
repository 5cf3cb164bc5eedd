//! What processes that begin and end together tell one another.

use super::{Known, Report, Session, SessionOptions};
use crate::Container;
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::shared::SharedFs;

impl Session {
    /// The same of a container that another process opens at the same moment, which has told what it [knows](Self::known).
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn join(fs: Arc<dyn SharedFs>, options: SessionOptions, known: &Known) -> Result<Self> {
        match Container::open_known(fs.clone(), known) {
            Some(container) => Self::of(container, fs, options),
            None => Self::open(fs, options),
        }
    }

    /// What others that open it at the same moment may be told, so that they need not look for themselves: to be asked for before anything is done.
    /// Nothing where they have to.
    pub fn known(&self) -> Option<Known> {
        self.state.lock().container.known()
    }

    /// As [`Self::finish`], and tells what this process has put, for who ends after it ([`Self::take_report`]); nothing where that is too much to be told.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_reporting(self) -> Result<Option<Report>> {
        let (container, ends) = self.end()?;
        Ok(if ends.is_empty() { None } else { container.report(&ends) })
    }

    /// What another process that has ended has put: it needs not be looked for.
    pub fn take_report(&self, report: Report) {
        self.state.lock().container.take_report(report);
    }
}
