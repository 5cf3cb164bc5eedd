//! Waiting a moment awake before sleeping.
//!
//! To be woken takes microseconds, on a virtual machine dozens of them, and an answer is often there sooner. So who waits
//! looks for a while first. How long, its luck decides: who was disappointed looks for half as long next time, and in the
//! end not at all; who slept for less than it could have looked, looks again. Where there is one core, looking would only
//! keep the other side from it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// Looks between two of the clock.
const LOOKS: u32 = 32;
/// Shortest time that is worth looking.
const SPIN_MIN: Duration = Duration::from_micros(2);

/// How long to look.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    /// In nanoseconds.
    time: AtomicU32,
}

/// One wait.
pub(crate) struct Wait {
    begun: Duration,
}

impl Spin {
    /// Looks for `limit` at most; not at all on a machine with one core for this process.
    pub fn new(limit: Duration) -> Self {
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let limit = if is_alone { Duration::ZERO } else { limit };
        Self { limit, time: AtomicU32::new(limit.as_nanos() as u32) }
    }

    /// Looks until `is_there`, for as long as it is worth it; whether it came. The wait goes on with [`Self::slept`].
    pub fn look(&self, is_there: impl Fn() -> bool) -> Result<(), Wait> {
        let begun = monotonic();
        let time = Duration::from_nanos(self.time.load(Ordering::Relaxed).into());
        while !time.is_zero() {
            for _ in 0..LOOKS {
                if is_there() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if monotonic() - begun >= time {
                let half = time / 2;
                self.set(if half < SPIN_MIN { Duration::ZERO } else { half });
                break;
            }
        }
        Err(Wait { begun })
    }

    /// A wait that looking did not end has ended.
    pub fn slept(&self, wait: &Wait) {
        if monotonic() - wait.begun < self.limit {
            self.set(self.limit);
        }
    }

    fn set(&self, time: Duration) {
        self.time.store(time.as_nanos() as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Spin {
        let limit = Duration::from_micros(16);
        Spin { limit, time: AtomicU32::new(limit.as_nanos() as u32) }
    }

    #[test]
    fn disappointment_ends_in_sleep_and_a_short_one_wakes_hope() {
        let spin = spin();
        let mut rounds = 0;
        let last = loop {
            let wait = spin.look(|| false).expect_err("it never comes");
            rounds += 1;
            if spin.time.load(Ordering::Relaxed) == 0 {
                break wait;
            }
        };
        assert_eq!(rounds, 4);
        assert!(spin.look(|| true).is_err(), "who does not look does not see");
        let long_ago = Wait { begun: last.begun.saturating_sub(Duration::from_secs(1)) };
        spin.slept(&long_ago);
        assert_eq!(spin.time.load(Ordering::Relaxed), 0);
        spin.slept(&Wait { begun: monotonic() + Duration::from_secs(1) - Duration::from_secs(1) });
        let short = Spin { limit: Duration::from_secs(1), time: AtomicU32::new(0) };
        short.slept(&Wait { begun: monotonic() });
        assert!(short.look(|| true).is_ok());
    }
}
