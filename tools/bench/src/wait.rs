//! Waits with a time limit that also check for interrupts and for processes that have exited.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Set when a signal requests the end of this program, which then cleans up and exits.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP are recorded here and no longer kill the program.
    pub fn listen() -> Outcome<Self> {
        let noted = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&noted.0)).context(|| "listen for signals")?;
        }
        Ok(noted)
    }

    /// Fails after a signal.
    pub fn check(&self) -> Outcome<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err("interrupted; nothing is left behind, and there is no report".to_owned()),
            false => Ok(()),
        }
    }
}

/// Waits until `source` is readable. Calls `check` regularly to check whether to continue.
pub fn readable(source: impl AsFd, limit: Duration, mut check: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    let begun = Stopwatch::start();
    loop {
        let mut polled = [PollFd::new(&source, PollFlags::IN)];
        match poll(&mut polled, Some(&timespec(CHECK_INTERVAL))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => check()?,
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
        if begun.elapsed() > limit {
            return Err(format!("no data within {} s", limit.as_secs()));
        }
    }
}

/// True if `source` is readable now.
pub fn is_readable(source: impl AsFd) -> Outcome<bool> {
    let mut polled = [PollFd::new(&source, PollFlags::IN)];
    poll(&mut polled, Some(&timespec(Duration::ZERO))).map(|count| count > 0).context(|| "poll for a result")
}

/// Polls `ready`, for third-party programs without an event to wait for.
pub fn until(what: &str, limit: Duration, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let begun = Stopwatch::start();
    while !ready()? {
        if begun.elapsed() > limit {
            return Err(format!("{what} is not ready after {} s", limit.as_secs()));
        }
        // An interrupted wait is only shorter.
        poll(&mut [], Some(&timespec(CHECK_INTERVAL))).ok();
    }
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
