//! Dynamic values of the completion scripts.

use crate::place::base::{self, Base};
use clap_complete::engine::CompletionCandidate;

/// Returns the names of the user's jobs on this host.
pub fn job_names() -> Vec<CompletionCandidate> {
    let jobs = Base::open(&base::path()).and_then(|base| base.jobs()).unwrap_or_default();
    jobs.iter().map(|job| CompletionCandidate::new(job.as_str())).collect()
}
