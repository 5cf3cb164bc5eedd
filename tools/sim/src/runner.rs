//! Many runs, on several threads: each runs on one.

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

/// A run takes milliseconds. One that is at it for so long goes round without end, where simulated time does not pass.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// How often to look.
const LOOK_TIME: Duration = Duration::from_millis(20);

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
    /// Counts what becomes of requests to holders.
    pub tally: Tally,
}

/// How runs go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Threads.
    jobs: usize,
    /// Whether to go on after a failure.
    keep_going: bool,
    /// How long one may take, in real time.
    limit: Duration,
}

impl Pace {
    pub(crate) fn new(jobs: u32, keep_going: bool) -> Self {
        Self { jobs: jobs.max(1) as usize, keep_going, limit: RUN_TIME_MAX }
    }
}

struct Progress<I, T> {
    left: I,
    failed: Vec<(T, Failure)>,
    /// What each thread runs, and since when.
    under_way: Vec<Option<(T, Duration)>>,
}

impl<I: Iterator<Item = T>, T: Copy> Progress<I, T> {
    /// What thread `job` runs next.
    fn next(&mut self, job: usize) -> Option<T> {
        let thing = self.left.next();
        self.under_way[job] = thing.map(|thing| (thing, monotonic()));
        thing
    }

    /// One that is under way for longer than `limit`.
    fn endless(&self, limit: Duration) -> Option<T> {
        let began = |(thing, begun): (T, Duration)| (monotonic() - begun > limit).then_some(thing);
        self.under_way.iter().flatten().copied().find_map(began)
    }
}

/// Runs seeds, tells of each failure as it comes, and which failed in the end.
///
/// # Errors
/// No thread can be started.
pub fn run_batch(
    batch: &Batch,
    tell: impl Fn(&u64, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(u64, Failure)>> {
    let (canary, pace) = (batch.canary, Pace::new(batch.jobs, batch.keep_going));
    let tally = batch.tally.clone();
    let run = move |&seed: &u64| run_tallied(&draw(seed, canary), &Countdown::default(), &tally);
    run_all(batch.seeds.clone(), pace, run, tell)
}

/// Runs one thing after another on so many threads, and gives what failed, in order.
///
/// # Errors
/// No thread can be started, or one does not come back from a run.
pub(crate) fn run_all<T: Copy + Ord + Send + 'static>(
    things: impl Iterator<Item = T> + Send + 'static,
    pace: Pace,
    run: impl Fn(&T) -> std::result::Result<(), Failure> + Clone + Send + 'static,
    tell: impl Fn(&T, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(T, Failure)>> {
    let Pace { jobs, keep_going, limit } = pace;
    let progress = Progress { left: things, failed: Vec::new(), under_way: vec![None; jobs] };
    let progress = Arc::new(Mutex::new(progress));
    let start = |job| {
        let (progress, run, tell) = (progress.clone(), run.clone(), tell.clone());
        start_thread(&format!("runs-{job}"), move || {
            loop {
                let thing = {
                    let mut progress = progress.lock();
                    if !keep_going && !progress.failed.is_empty() {
                        progress.under_way[job] = None;
                        return;
                    }
                    progress.next(job)
                };
                let Some(thing) = thing else { return };
                if let Err(failure) = run(&thing) {
                    tell(&thing, &failure);
                    progress.lock().failed.push((thing, failure));
                }
            }
        })
    };
    let threads: Vec<_> = (0..jobs).map(start).collect::<Result<_>>()?;
    while !threads.iter().all(JoinHandle::is_finished) {
        std::thread::park_timeout(LOOK_TIME.min(limit));
        let endless = progress.lock().endless(limit);
        if let Some(thing) = endless {
            tell(&thing, &Failure { step: 0, message: format!("it does not end within {limit:?}") });
            // Its thread cannot be had back.
            return Err(Fault::io("a run does not end, and the others are given up with it"));
        }
    }
    // A run's own panics are its findings; one of the runner is nobody's.
    if !threads.into_iter().map(JoinHandle::join).all(|ended| ended.is_ok()) {
        return Err(Fault::io("a thread of runs has panicked"));
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

    /// Two runs of a batch once went round for ever, and nobody was told which.
    #[test]
    fn a_run_that_does_not_end_is_told() {
        let told = Arc::new(AtomicBool::new(false));
        let is_told = told.clone();
        let run = move |thing: &u64| {
            while *thing == 3 && !is_told.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        let (sender, failures) = channel();
        let tell = move |thing: &u64, failure: &Failure| {
            told.store(true, Ordering::Relaxed);
            sender.send((*thing, failure.message.clone())).expect("somebody hears");
        };
        let pace = Pace { limit: Duration::from_millis(200), ..Pace::new(2, true) };
        assert!(run_all(0..10, pace, run, tell).is_err());
        assert_eq!(failures.try_recv(), Ok((3, "it does not end within 200ms".to_owned())));
    }
}
