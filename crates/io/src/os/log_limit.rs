//! Rate-limited log lines, for events that anyone can cause: a few each minute, with the count of suppressed ones.

use super::process::monotonic;
use parking_lot::Mutex;
use std::fmt;
use std::time::Duration;

/// The period of [`LINES_MAX`].
const PERIOD: Duration = Duration::from_secs(60);
const LINES_MAX: u32 = 5;

/// A rate limiter for warnings of one kind.
#[derive(Default)]
pub struct RateLimited(Mutex<State>);

#[derive(Default)]
struct State {
    /// The start of the period.
    since: Option<Duration>,
    lines: u32,
    suppressed: u64,
}

impl RateLimited {
    /// Logs a warning, unless the limit is reached.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        match self.turn(monotonic()) {
            None => {}
            Some(0) => log::warn!("{what}"),
            Some(count) => log::warn!("{what} ({count} more were not logged)"),
        }
    }

    /// `Some` if a line may be logged now, with the count of lines suppressed before.
    fn turn(&self, now: Duration) -> Option<u64> {
        let mut state = self.0.lock();
        if state.since.is_none_or(|since| now.saturating_sub(since) >= PERIOD) {
            (state.since, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES_MAX {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_minute_are_logged_and_the_rest_is_counted() {
        let seldom = RateLimited::default();
        let at = |seconds| seldom.turn(Duration::from_secs(seconds));
        assert_eq!((0..100).filter_map(|_| at(7)).collect::<Vec<_>>(), [0; 5]);
        assert_eq!(at(66), None);
        assert_eq!((0..100).filter_map(|_| at(67)).collect::<Vec<_>>(), [96, 0, 0, 0, 0]);
        assert_eq!(at(1000), Some(95));
    }
}
