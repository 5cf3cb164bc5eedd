//! Executes many runs on several threads, one run per thread at a time.

use crate::countdown::Countdown;
use crate::program::draw;
use crate::run::{Failure, run_tallied};
use crate::world::{Canary, Tally};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::os::process::{monotonic, start_thread};

/// A run takes milliseconds. After this time it is in an endless loop in which simulated time does not advance.
pub(crate) const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// How often the runner checks the time of runs.
const POLL_TIME: Duration = Duration::from_millis(20);

/// How to execute many runs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RunOptions {
    /// Number of concurrent runs.
    #[arg(long, default_value_t = 2)]
    pub jobs: u32,
    /// Inject this bug.
    #[arg(long)]
    pub canary: Option<Canary>,
    /// Replicas of each home.
    #[arg(long, default_value_t = 1)]
    pub replicas: u32,
    /// Go on after a failure.
    #[arg(long)]
    pub keep_going: bool,
}

struct Progress<I, T> {
    left: I,
    failed: Vec<(T, Failure)>,
    /// The current run of each thread, with its start.
    running: Vec<Option<(T, Duration)>>,
}

impl<I: Iterator<Item = T>, T: Copy> Progress<I, T> {
    /// Takes the next run for thread `job`.
    fn next(&mut self, job: usize) -> Option<T> {
        let thing = self.left.next();
        self.running[job] = thing.map(|thing| (thing, monotonic()));
        thing
    }

    /// Returns a run that exceeds `limit`.
    fn endless(&self, limit: Duration) -> Option<T> {
        let began = |(thing, begun): (T, Duration)| (monotonic() - begun > limit).then_some(thing);
        self.running.iter().flatten().copied().find_map(began)
    }
}

/// Runs seeds, reports each failure at once through `report`, and returns all failures. Adds the outcomes of peer reads to `tally`.
///
/// # Errors
/// A thread cannot be started, or a run does not end.
pub fn run_seeds(
    seeds: Range<u64>,
    how: &RunOptions,
    tally: Tally,
    report: impl Fn(&u64, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(u64, Failure)>> {
    let (canary, replicas) = (how.canary, how.replicas);
    let run = move |&seed: &u64| {
        run_tallied(&draw(seed, canary).replicated(replicas), &Countdown::default(), &tally)
    };
    run_all(seeds, how, RUN_TIME_MAX, run, report)
}

/// Runs `things` on several threads, and returns the failures in order. Fails if a run takes longer than `limit` of real time.
pub(crate) fn run_all<T: Copy + Ord + Send + 'static>(
    things: impl Iterator<Item = T> + Send + 'static,
    how: &RunOptions,
    limit: Duration,
    run: impl Fn(&T) -> std::result::Result<(), Failure> + Clone + Send + 'static,
    report: impl Fn(&T, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(T, Failure)>> {
    let (jobs, keep_going) = (how.jobs.max(1) as usize, how.keep_going);
    let progress = Progress { left: things, failed: Vec::new(), running: vec![None; jobs] };
    let progress = Arc::new(Mutex::new(progress));
    let start = |job| {
        let (progress, run, report) = (progress.clone(), run.clone(), report.clone());
        start_thread(&format!("runs-{job}"), move || {
            loop {
                let thing = {
                    let mut progress = progress.lock();
                    if !keep_going && !progress.failed.is_empty() {
                        progress.running[job] = None;
                        return;
                    }
                    progress.next(job)
                };
                let Some(thing) = thing else { return };
                if let Err(failure) = run(&thing) {
                    report(&thing, &failure);
                    progress.lock().failed.push((thing, failure));
                }
            }
        })
    };
    let threads: Vec<_> = (0..jobs).map(start).collect::<Result<_>>()?;
    while !threads.iter().all(JoinHandle::is_finished) {
        std::thread::park_timeout(POLL_TIME.min(limit));
        let endless = progress.lock().endless(limit);
        if let Some(thing) = endless {
            report(&thing, &Failure { step: 0, message: format!("the run does not end within {limit:?}") });
            // The thread cannot be stopped.
            return Err(Fault::io("a run does not end; the other runs are abandoned"));
        }
    }
    // `run` catches the panics of a run; this one is of the runner.
    if !threads.into_iter().map(JoinHandle::join).all(|ended| ended.is_ok()) {
        return Err(Fault::io("a runner thread panicked"));
    }
    let mut failed = std::mem::take(&mut progress.lock().failed);
    failed.sort_by_key(|(thing, _)| *thing);
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    /// Two runs of a batch once looped forever, and the runner did not report their seeds.
    #[test]
    fn an_endless_run_is_reported() {
        let reported = Arc::new(AtomicBool::new(false));
        let was_reported = reported.clone();
        let run = move |thing: &u64| {
            while *thing == 3 && !was_reported.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        let (sender, failures) = channel();
        let report = move |thing: &u64, failure: &Failure| {
            reported.store(true, Ordering::Relaxed);
            sender.send((*thing, failure.message.clone())).expect("the receiver is open");
        };
        let how = RunOptions { jobs: 2, canary: None, replicas: 1, keep_going: true };
        assert!(run_all(0..10, &how, Duration::from_millis(200), run, report).is_err());
        assert_eq!(failures.try_recv(), Ok((3, "the run does not end within 200ms".to_owned())));
    }
}
