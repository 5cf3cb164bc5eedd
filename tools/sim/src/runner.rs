//! Many seeds, on several threads: each seed runs on one.

use crate::program::draw;
use crate::run::{Failure, run};
use crate::world::Canary;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use tameike_core::{Fault, Result};
use tameike_io::os::process::start_thread;

/// How many seeds are run.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Which.
    pub seeds: Range<u64>,
    /// At a time.
    pub jobs: u32,
    /// A bug on purpose.
    pub canary: Option<Canary>,
    /// Whether to go on after a failure.
    pub keep_going: bool,
}

struct Progress {
    left: Range<u64>,
    failed: Vec<(u64, Failure)>,
}

/// Runs seeds, tells of each failure as it comes, and which failed in the end.
///
/// # Errors
/// No thread can be started.
pub fn run_batch(
    batch: &Batch,
    tell: impl Fn(u64, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(u64, Failure)>> {
    let progress = Arc::new(Mutex::new(Progress { left: batch.seeds.clone(), failed: Vec::new() }));
    let start = |job| {
        let (progress, tell) = (progress.clone(), tell.clone());
        let (canary, keep_going) = (batch.canary, batch.keep_going);
        start_thread(&format!("seeds-{job}"), move || {
            loop {
                let seed = {
                    let mut progress = progress.lock();
                    if !keep_going && !progress.failed.is_empty() {
                        return;
                    }
                    progress.left.next()
                };
                let Some(seed) = seed else { return };
                if let Err(failure) = run(&draw(seed, canary)) {
                    tell(seed, &failure);
                    progress.lock().failed.push((seed, failure));
                }
            }
        })
    };
    let threads: Vec<_> = (0..batch.jobs.max(1)).map(start).collect::<Result<_>>()?;
    // A run's own panics are its findings; one of the runner is nobody's.
    if !threads.into_iter().map(JoinHandle::join).all(|ended| ended.is_ok()) {
        return Err(Fault::io("a thread that ran seeds has panicked"));
    }
    let mut failed = std::mem::take(&mut progress.lock().failed);
    failed.sort_by_key(|(seed, _)| *seed);
    Ok(failed)
}
