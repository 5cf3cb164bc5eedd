//! The one place of this program that reads a clock.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Seconds since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark measures real time; nothing here is simulated"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// What has passed.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Seconds of processor time that this process has taken so far, in user and in system mode.
pub fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
