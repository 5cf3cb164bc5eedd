//! Waiting a moment awake before sleeping.
//!
//! To be woken takes microseconds, on a virtual machine dozens of them, and an answer is often there sooner. So who waits
//! looks for a while first. How long, its luck decides: who was disappointed looks for half as long next time, and in the
//! end not at all; who slept for less than it could have looked, looks again. Where there is one core, looking would only
//! keep the other side from it.
//!
//! Where more want to run than there are cores, what keeps the other side from answering may be who looks for the answer. So
//! who was disappointed lets others run in between its looks for a number of waits. One of these that computes then has the
//! core for a whole slice of time: who has met such a one keeps its core for a good many waits, whatever comes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// Looks between two of the clock.
const LOOKS: u32 = 32;
/// Shortest time that is worth looking.
const SPIN_MIN: Duration = Duration::from_micros(2);

/// Waits in which others may run in between, after one that was in vain: enough to be worth that one.
const SHARED: u32 = 32;
/// Whoever had the core for longer in between was not about to answer anything.
const SLICE: Duration = Duration::from_micros(500);
/// Waits in which the core is kept after that, so that such a loss is a small part of their time.
const KEPT: u32 = 1 << 10;

/// How long to look.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    /// In nanoseconds.
    time: AtomicU32,
    /// Waits yet in which others may run in between.
    shares: AtomicU32,
    /// Waits yet in which they may not.
    keeps: AtomicU32,
}

/// One wait.
pub(crate) struct Wait {
    begun: Duration,
}

impl Spin {
    /// Looks for `limit` at most; not at all on a machine with one core for this process.
    pub fn new(limit: Duration) -> Self {
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        Self::of(if is_alone { Duration::ZERO } else { limit })
    }

    fn of(limit: Duration) -> Self {
        Self {
            limit,
            time: AtomicU32::new(limit.as_nanos() as u32),
            shares: AtomicU32::new(0),
            keeps: AtomicU32::new(0),
        }
    }

    /// Looks until `is_there`, for as long as it is worth it; whether it came. The wait goes on with [`Self::slept`].
    pub fn look(&self, is_there: impl Fn() -> bool) -> Result<(), Wait> {
        let begun = monotonic();
        let time = Duration::from_nanos(self.time.load(Ordering::Relaxed).into());
        if time.is_zero() {
            return Err(Wait { begun });
        }
        let mut yields = self.yields();
        let mut last = begun;
        loop {
            for _ in 0..LOOKS {
                if is_there() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let now = monotonic();
            if yields && now - last > SLICE {
                self.keeps.store(KEPT, Ordering::Relaxed);
                yields = false;
            }
            if now - begun >= time {
                let half = time / 2;
                self.set(if half < SPIN_MIN { Duration::ZERO } else { half });
                self.shares.store(SHARED, Ordering::Relaxed);
                return Err(Wait { begun });
            }
            last = now;
            if yields {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Whether others may run in between this time.
    fn yields(&self) -> bool {
        // Of several threads at once, one may not be counted.
        let one_of = |waits: &AtomicU32| {
            let left = waits.load(Ordering::Relaxed);
            if left > 0 {
                waits.store(left - 1, Ordering::Relaxed);
            }
            left > 0
        };
        !one_of(&self.keeps) && one_of(&self.shares)
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
    use std::num::NonZero;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn disappointment_ends_in_sleep_and_a_short_one_wakes_hope() {
        let spin = Spin::of(Duration::from_micros(16));
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
        let short = Spin { time: AtomicU32::new(0), ..Spin::of(Duration::from_secs(1)) };
        short.slept(&Wait { begun: monotonic() });
        assert!(short.look(|| true).is_ok());
    }

    /// The one that computes is on this core: without the bound, each wait would take a slice of its time.
    #[test]
    fn who_meets_one_that_computes_keeps_its_core() {
        let (stop, begun, patience) = (AtomicBool::new(false), monotonic(), Duration::from_secs(60));
        std::thread::scope(|scope| {
            for _ in 0..2 * std::thread::available_parallelism().map_or(1, NonZero::get) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) && monotonic() - begun < patience {
                        std::hint::spin_loop();
                    }
                });
            }
            let spin = Spin::of(Duration::from_millis(1));
            while spin.keeps.load(Ordering::Relaxed) == 0 {
                assert!(monotonic() - begun < patience, "nobody else had the core");
                let _ = spin.look(|| false);
                spin.set(spin.limit);
            }
            let keeps = spin.keeps.load(Ordering::Relaxed);
            assert!(!spin.yields(), "it has just lost its core");
            assert_eq!(spin.keeps.load(Ordering::Relaxed), keeps - 1);
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn others_may_run_after_a_disappointment_and_not_while_the_core_is_kept() {
        let spin = Spin::of(Duration::from_micros(16));
        assert!(!spin.yields(), "nothing is known yet");
        assert!(spin.look(|| false).is_err());
        assert!(spin.yields());
        spin.keeps.store(KEPT, Ordering::Relaxed);
        assert!((0..KEPT).all(|_| !spin.yields()));
        assert!((1..SHARED).all(|_| spin.yields()));
        assert!(!spin.yields());
    }
}
