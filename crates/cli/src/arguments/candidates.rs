//! Values that the completion scripts offer.

use crate::place::base::{self, Base};
use clap_complete::engine::CompletionCandidate;

/// Names of the user's jobs on this host, for the completion scripts.
pub fn job_names() -> Vec<CompletionCandidate> {
    let jobs = Base::open(&base::path()).and_then(|base| base.jobs()).unwrap_or_default();
    jobs.iter().map(|job| CompletionCandidate::new(job.as_str())).collect()
}
