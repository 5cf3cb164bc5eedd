//! The one place of this program that reads a clock.

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
