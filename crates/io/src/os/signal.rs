//! Termination signals as events.

use super::process::{monotonic, start_thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::time::Duration;
use tameike_core::{Fault, Result};

/// The signals by which users and batch systems terminate a program.
pub const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// A repeated signal within this time is ignored: `timeout` and batch systems signal a process, and then its process group.
const ECHO: Duration = Duration::from_millis(50);

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The signal number.
    pub signal: i32,
    /// True if a process sent it. Otherwise the terminal sent it (Ctrl-C) to all processes of the foreground group.
    pub from_process: bool,
}

/// Calls `take`, on a new thread, for each later signal of [`ENDING`], instead of the default action. A hang-up that was ignored
/// at start (`nohup`) stays ignored.
pub fn watch_ending(mut take: impl FnMut(Arrived) + Send + 'static) -> Result<()> {
    let ignored = ignored_signals();
    let watched = ENDING.iter().filter(|&&signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = SignalsInfo::<WithOrigin>::new(watched)
        .map_err(|error| Fault::from_os("preparing to receive signals", &error))?;
    start_thread("signals", move || {
        let mut last = None;
        for origin in signals.forever() {
            let now = monotonic();
            let echo = last.is_some_and(|(signal, then)| signal == origin.signal && now - then < ECHO);
            last = Some((origin.signal, now));
            if echo {
                continue;
            }
            take(Arrived { signal: origin.signal, from_process: origin.process.is_some() });
        }
    })?;
    Ok(())
}

/// The mask of ignored signals; bit `n - 1` stands for signal `n`.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

/// Saves the signal actions of this process, and restores them on drop. For calls of libraries that install handlers.
pub struct SavedSignals(Vec<(i32, libc::sigaction)>);

impl SavedSignals {
    /// Saves the current signal actions.
    pub fn save() -> Self {
        let read = |signal| {
            // SAFETY: all-zero bytes are a valid value; the call fills it.
            let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: without a new action nothing is changed.
            let returned = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
            (returned == 0).then_some((signal, now))
        };
        Self((1..libc::SIGRTMIN()).filter_map(read).collect())
    }
}

impl Drop for SavedSignals {
    fn drop(&mut self) {
        for (signal, action) in &self.0 {
            // Fails for signals whose action cannot be changed.
            // SAFETY: an action that was in effect in this process.
            let _ = unsafe { libc::sigaction(*signal, &raw const *action, std::ptr::null_mut()) };
        }
    }
}
