//! The kernel's clocks and its source of random bytes.

use super::runtime::{Clock, Random};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tameike_core::Timestamp;

/// `CLOCK_MONOTONIC`, the clock of all deadlines in this module.
pub(super) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// `CLOCK_MONOTONIC` and `CLOCK_REALTIME`.
pub(super) struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        monotonic()
    }

    fn wall(&self) -> Timestamp {
        let time = clock_gettime(ClockId::Realtime);
        Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
    }
}

/// `getrandom(2)`.
pub(super) struct SystemRandom;

impl Random for SystemRandom {
    #[expect(clippy::disallowed_methods, reason = "this is the parameter's real side")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel returns random bytes after boot");
    }
}
