//! Waiting for something to become readable, while watching for an interrupt and for processes that end.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wait looks at what does not wake it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether a person or the batch system wants this program to end; it then cleans up and ends.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP are noted here and no longer end the program at once.
    pub fn listen() -> Outcome<Self> {
        let noted = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&noted.0)).context(|| "listen for signals")?;
        }
        Ok(noted)
    }

    /// An error once a signal has come.
    pub fn check(&self) -> Outcome<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err("interrupted; nothing is left behind, and there is no report".to_owned()),
            false => Ok(()),
        }
    }
}

/// Waits until `source` is readable. `look` is asked now and then whether to go on.
pub fn readable(source: impl AsFd, limit: Duration, mut look: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    let begun = Stopwatch::start();
    loop {
        let mut polled = [PollFd::new(&source, PollFlags::IN)];
        match poll(&mut polled, Some(&timespec(LOOK_EVERY))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => look()?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
        if begun.elapsed() > limit {
            return Err(format!("nothing heard for {} s", limit.as_secs()));
        }
    }
}

/// Whether `source` is readable now.
pub fn is_readable(source: impl AsFd) -> Outcome<bool> {
    let mut polled = [PollFd::new(&source, PollFlags::IN)];
    poll(&mut polled, Some(&timespec(Duration::ZERO))).map(|count| count > 0).context(|| "look for an answer")
}

/// Asks `ready` again and again until it says so; for programs of others, which offer no event to wait for.
pub fn until(what: &str, limit: Duration, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let begun = Stopwatch::start();
    while !ready()? {
        if begun.elapsed() > limit {
            return Err(format!("{what} is not ready after {} s", limit.as_secs()));
        }
        // An interrupted wait only asks again sooner.
        poll(&mut [], Some(&timespec(LOOK_EVERY))).ok();
    }
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
