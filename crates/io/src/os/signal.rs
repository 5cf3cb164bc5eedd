//! Signals as events.

use super::process::{monotonic, start_thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::time::Duration;
use tameike_core::{Fault, Result};

/// The signals by which people and batch systems ask a program to end.
pub const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// The same signal again within this time is an echo: `timeout` and batch systems signal a process and then its
/// whole group.
const ECHO: Duration = Duration::from_millis(50);

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Whether a process sent it. When not, the terminal did (Ctrl-C), and every process of the foreground
    /// has got it already.
    pub from_process: bool,
}

/// Calls `take`, on a thread of its own, for each signal of [`ENDING`] that arrives from now on, in place of
/// what the signal does by itself. A hang-up that was ignored at start (`nohup`) stays ignored.
///
/// # Errors
/// The thread could not start.
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

/// Bit `n - 1` stands for signal `n`.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

/// The signal actions of this process, restored when dropped: for calls of libraries that install handlers.
pub struct SavedSignals(Vec<(i32, libc::sigaction)>);

impl SavedSignals {
    /// Saves the current actions.
    pub fn save() -> Self {
        let read = |signal| {
            // SAFETY: all of its fields may be zero; only read into.
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
            // Refused for those that nobody can change.
            // SAFETY: an action that was in force in this process.
            let _ = unsafe { libc::sigaction(*signal, &raw const *action, std::ptr::null_mut()) };
        }
    }
}
