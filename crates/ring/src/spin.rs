//! Adaptive polling before a sleep.
//!
//! A wake-up takes microseconds (tens of them on a virtual machine), and a reply often arrives sooner. So a waiter polls first. The polling
//! time adapts:
//!
//! - A wait whose polling was in vain halves the time for the next one, down to zero.
//! - A wait that slept for less than the maximum polling time, and the time of a wake-up, restores it.
//! - If both sides have one core, a waiter never polls, as that would keep the other side from running.
//!
//! With more runnable threads than cores, the poller itself may keep the other side from running. So after polling in vain, the waiter yields
//! between polls for a number of waits. A compute-bound thread then takes the core for a whole time slice: a waiter that met one does not
//! yield for many waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tameike_io::os::process::{cores_possible, monotonic};

/// Polls between two reads of the clock.
const POLLS: u32 = 32;
/// Minimum polling time that pays.
const SPIN_MIN: Duration = Duration::from_micros(2);

/// Time of a wake-up on another core of a virtual machine.
const WAKE_UP: Duration = Duration::from_micros(50);

/// Number of waits with yields after one whose polling was in vain: enough to make up for that one.
const SHARED: u32 = 32;
/// A yield that takes longer than this met a compute-bound thread.
const SLICE: Duration = Duration::from_micros(500);
/// Number of waits without yields after that, so that such a loss is a small part of their time.
const KEPT: u32 = 1 << 10;

/// State of adaptive polling.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    /// Polling time, in nanoseconds.
    time: AtomicU32,
    /// Remaining waits with yields.
    shares: AtomicU32,
    /// Remaining waits without yields.
    keeps: AtomicU32,
}

/// One wait.
pub(crate) struct Wait {
    begun: Duration,
}

impl Spin {
    /// Of an agent, whose threads share its cores: polls for `limit` at most, never if the agent has one core.
    pub fn of_agent(limit: Duration) -> Self {
        let has_one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        Self::of(if has_one_core { Duration::ZERO } else { limit })
    }

    /// Of a program, which may be pinned to a core: the agent has others. Never polls if the machine has one core.
    pub fn of_program(limit: Duration) -> Self {
        let has_one_core = cores_possible().is_ok_and(|cores| cores == 1);
        Self::of(if has_one_core { Duration::ZERO } else { limit })
    }

    fn of(limit: Duration) -> Self {
        Self {
            limit,
            time: AtomicU32::new(limit.as_nanos() as u32),
            shares: AtomicU32::new(0),
            keeps: AtomicU32::new(0),
        }
    }

    /// Polls until `is_there`, for the current polling time. If it is in vain, the caller sleeps and then calls [`Self::slept`].
    pub fn poll(&self, is_there: impl Fn() -> bool) -> Result<(), Wait> {
        let begun = monotonic();
        let time = Duration::from_nanos(self.time.load(Ordering::Relaxed).into());
        if time.is_zero() {
            return Err(Wait { begun });
        }
        let mut yields = self.yields();
        let mut last = begun;
        loop {
            for _ in 0..POLLS {
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

    /// Returns true if this wait yields.
    fn yields(&self) -> bool {
        // Concurrent waits may be miscounted.
        let one_of = |waits: &AtomicU32| {
            let left = waits.load(Ordering::Relaxed);
            if left > 0 {
                waits.store(left - 1, Ordering::Relaxed);
            }
            left > 0
        };
        !one_of(&self.keeps) && one_of(&self.shares)
    }

    /// Ends a wait that slept.
    pub fn slept(&self, wait: &Wait) {
        if !self.limit.is_zero() && monotonic() - wait.begun < self.limit + WAKE_UP {
            self.restore();
        }
    }

    /// The next wait polls for the maximum time.
    pub fn restore(&self) {
        self.set(self.limit);
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
    fn polling_in_vain_ends_in_sleep_and_a_short_sleep_restores_polling() {
        let spin = Spin::of(Duration::from_micros(16));
        let mut rounds = 0;
        let last = loop {
            let wait = spin.poll(|| false).expect_err("it never comes");
            rounds += 1;
            if spin.time.load(Ordering::Relaxed) == 0 {
                break wait;
            }
        };
        assert_eq!(rounds, 4);
        assert!(spin.poll(|| true).is_err(), "without polling, nothing is found");
        let long_ago = Wait { begun: last.begun.saturating_sub(Duration::from_secs(1)) };
        spin.slept(&long_ago);
        assert_eq!(spin.time.load(Ordering::Relaxed), 0);
        spin.slept(&Wait { begun: monotonic() + Duration::from_secs(1) - Duration::from_secs(1) });
        let short = Spin { time: AtomicU32::new(0), ..Spin::of(Duration::from_secs(1)) };
        short.slept(&Wait { begun: monotonic() });
        assert!(short.poll(|| true).is_ok());
    }

    /// Without the limit, each wait would take a time slice of the compute-bound thread on this core.
    #[test]
    fn a_waiter_that_meets_a_compute_bound_thread_stops_yielding() {
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
                assert!(monotonic() - begun < patience, "no other thread had the core");
                let _ = spin.poll(|| false);
                spin.set(spin.limit);
            }
            let keeps = spin.keeps.load(Ordering::Relaxed);
            assert!(!spin.yields(), "it has just met a compute-bound thread");
            assert_eq!(spin.keeps.load(Ordering::Relaxed), keeps - 1);
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn waits_yield_after_polling_in_vain_unless_a_compute_bound_thread_was_met() {
        let spin = Spin::of(Duration::from_micros(16));
        assert!(!spin.yields(), "no wait has happened yet");
        assert!(spin.poll(|| false).is_err());
        assert!(spin.yields());
        spin.keeps.store(KEPT, Ordering::Relaxed);
        assert!((0..KEPT).all(|_| !spin.yields()));
        assert!((1..SHARED).all(|_| spin.yields()));
        assert!(!spin.yields());
    }
}
