//! Allocation of the arena's slots, in the program's private memory.
//!
//! A slot belongs to a call, not to a thread, so that any number of threads and signal handlers can share them. The first free one is taken:
//! a single thread touches one window only.

use crate::layout::{ALL_SLOTS, SLOTS};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// Bit: a thread waits for a slot.
const WAITS: u32 = 1 << 31;
/// Time limit of a wait: that of calls in flight. A wait is in vain only if signal handlers, as many as there are slots, have interrupted
/// calls and call themselves.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a waiter checks whether to give up.
const SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

#[derive(Debug, Default)]
pub(super) struct Slots {
    taken: AtomicU32,
}

/// A slot in use, until dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    slots: &'a Slots,
    pub number: usize,
}

impl Slots {
    /// Takes a slot if more than `spare` are free; else returns the word.
    pub fn try_claim(&self, spare: usize) -> Result<Claim<'_>, u32> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        while (!taken & ALL_SLOTS).count_ones() as usize > spare {
            let number = taken.trailing_ones() as usize;
            let with = taken | 1 << number;
            match self.taken.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Claim { slots: self, number }),
                Err(now) => taken = now,
            }
        }
        Err(taken)
    }

    /// Returns true if several slots are in use.
    pub fn are_shared(&self) -> bool {
        (self.taken.load(Ordering::Relaxed) & ALL_SLOTS).count_ones() > 1
    }

    /// Takes a slot if more than `spare` are free; waits for one until `give_up` returns true or, if `limited`, the time limit has passed.
    pub fn claim(&self, spare: usize, limited: bool, give_up: impl Fn() -> bool) -> Option<Claim<'_>> {
        let mut until = None;
        loop {
            let taken = match self.try_claim(spare) {
                Ok(claim) => return Some(claim),
                Err(taken) => taken,
            };
            let waits = taken | WAITS;
            let marked = self.taken.compare_exchange(taken, waits, Ordering::Relaxed, Ordering::Relaxed);
            if marked.is_ok() {
                // Also ends if a slot was freed in between: then the word differs.
                let _ = futex::wait(&self.taken, futex::Flags::PRIVATE, waits, Some(&SLICE));
            }
            let now = monotonic();
            if give_up() || (limited && now > *until.get_or_insert(now + SLOT_WAIT_MAX)) {
                return None;
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let taken = self.slots.taken.fetch_and(!(1 << self.number | WAITS), Ordering::Release);
        if taken & WAITS != 0 {
            // All waiters, as the bit is cleared; fails only for an unmapped word.
            let _ = futex::wake(&self.slots.taken, futex::Flags::PRIVATE, SLOTS as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_first_free_slot_is_taken_and_all_can_be() {
        let slots = Slots::default();
        let mut claims: Vec<_> = (0..SLOTS).map_while(|_| slots.claim(0, true, || true)).collect();
        assert!(claims.iter().map(|claim| claim.number).eq(0..SLOTS));
        assert!(slots.claim(0, true, || true).is_none());
        drop(claims.remove(3));
        assert!(slots.try_claim(1).is_err(), "the last one is reserved");
        assert!(slots.claim(1, true, || true).is_none());
        assert_eq!(slots.claim(0, true, || true).map(|claim| claim.number), Some(3));
    }

    #[test]
    fn waiters_get_slots() {
        const ROUNDS: usize = 2000;
        let (slots, claims) = (Slots::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 * SLOTS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS / SLOTS {
                        let _claim = slots.claim(0, true, || false).expect("in time");
                        claims.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(claims.into_inner(), 3 * SLOTS * (ROUNDS / SLOTS));
        assert_eq!(slots.taken.load(Ordering::Relaxed) & ALL_SLOTS, 0);
    }
}
