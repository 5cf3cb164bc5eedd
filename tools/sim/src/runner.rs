//! Many runs, on several threads: each runs on one.

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

struct Progress<I, T> {
    left: I,
    failed: Vec<(T, Failure)>,
}

/// Runs seeds, tells of each failure as it comes, and which failed in the end.
///
/// # Errors
/// No thread can be started.
pub fn run_batch(
    batch: &Batch,
    tell: impl Fn(&u64, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(u64, Failure)>> {
    let canary = batch.canary;
    run_all(batch.seeds.clone(), batch.jobs, batch.keep_going, move |&seed| run(&draw(seed, canary)), tell)
}

/// Runs one thing after another on so many threads, and gives what failed, in order.
///
/// # Errors
/// No thread can be started.
pub(crate) fn run_all<T: Ord + Send + 'static>(
    things: impl Iterator<Item = T> + Send + 'static,
    jobs: u32,
    keep_going: bool,
    run: impl Fn(&T) -> std::result::Result<(), Failure> + Clone + Send + 'static,
    tell: impl Fn(&T, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(T, Failure)>> {
    let progress = Arc::new(Mutex::new(Progress { left: things, failed: Vec::new() }));
    let start = |job| {
        let (progress, run, tell) = (progress.clone(), run.clone(), tell.clone());
        start_thread(&format!("runs-{job}"), move || {
            loop {
                let thing = {
                    let mut progress = progress.lock();
                    if !keep_going && !progress.failed.is_empty() {
                        return;
                    }
                    progress.left.next()
                };
                let Some(thing) = thing else { return };
                if let Err(failure) = run(&thing) {
                    tell(&thing, &failure);
                    progress.lock().failed.push((thing, failure));
                }
            }
        })
    };
    let threads: Vec<_> = (0..jobs.max(1)).map(start).collect::<Result<_>>()?;
    // A run's own panics are its findings; one of the runner is nobody's.
    if !threads.into_iter().map(JoinHandle::join).all(|ended| ended.is_ok()) {
        return Err(Fault::io("a thread of runs has panicked"));
    }
    let mut failed = std::mem::take(&mut progress.lock().failed);
    failed.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(failed)
}
