//! Waits for file descriptors and conditions, and for signals and exits of processes at the same time.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval of checks for events that wake no wait.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A request of a user or batch system to end this program, after it has cleaned up.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Handles SIGINT, SIGTERM and SIGHUP, which no longer end the program at once.
    pub fn listen() -> Outcome<Self> {
        let noted = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&noted.0)).context(|| "listen for signals")?;
        }
        Ok(noted)
    }

    /// Returns an error after a signal.
    pub fn check(&self) -> Outcome<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err("interrupted; there is no report".to_owned()),
            false => Ok(()),
        }
    }
}

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Returns the status of the process if it has exited.
    pub fn status(&mut self) -> Outcome<Option<ExitStatus>> {
        self.0.try_wait().context(|| "wait for a process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has exited.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until `source` is readable. An error of `check`, which it calls every 100 ms, ends the wait.
pub fn readable(source: impl AsFd, limit: Duration, mut check: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    let begun = Stopwatch::start();
    loop {
        let mut polled = [PollFd::new(&source, PollFlags::IN)];
        match poll(&mut polled, Some(&timespec(POLL_INTERVAL))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => check()?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
        if begun.elapsed() > limit {
            return Err(format!("no message for {} s", limit.as_secs()));
        }
    }
}

/// Returns true if `source` is readable now.
pub fn is_readable(source: impl AsFd) -> Outcome<bool> {
    let mut polled = [PollFd::new(&source, PollFlags::IN)];
    poll(&mut polled, Some(&timespec(Duration::ZERO))).map(|count| count > 0).context(|| "poll for an answer")
}

/// Polls `ready` until it returns true; for programs that offer no event to wait for.
pub fn until(what: &str, limit: Duration, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let begun = Stopwatch::start();
    while !ready()? {
        if begun.elapsed() > limit {
            return Err(format!("{what} is not ready after {} s", limit.as_secs()));
        }
        // An interrupted wait only polls earlier.
        poll(&mut [], Some(&timespec(POLL_INTERVAL))).ok();
    }
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
