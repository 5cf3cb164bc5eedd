//! Waits for changes of a rank's memory, and the wake-ups.
//!
//! A waiter polls for some microseconds, counts itself, and sleeps on the word of events. A thread that changes the memory wakes it
//! through that word, if the count shows a waiter. Stores that a program makes without this library wake no waiter; a waiter checks often
//! enough to find them.

use super::{Result, WindowMemory};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;
use tameike_core::Errno;
use tameike_io::os::process::monotonic;

/// How often a waiter checks before it sleeps: for about as long as a wake-up takes.
const POLLS: u32 = 200;
/// How often a waiter that sleeps checks its condition.
const SLICE: Duration = Duration::from_millis(10);

/// Comparison of a word with a value, as unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The word is equal to the value.
    Equal,
    /// The word differs from it.
    NotEqual,
    /// The word is larger.
    Greater,
    /// The word is larger or equal.
    GreaterOrEqual,
    /// The word is smaller.
    Less,
    /// The word is smaller or equal.
    LessOrEqual,
}

impl Comparison {
    /// Returns true if the comparison holds.
    pub fn holds(self, word: u64, value: u64) -> bool {
        match self {
            Self::Equal => word == value,
            Self::NotEqual => word != value,
            Self::Greater => word > value,
            Self::GreaterOrEqual => word >= value,
            Self::Less => word < value,
            Self::LessOrEqual => word <= value,
        }
    }
}

/// A thread that waits for changes of the memory of a rank.
#[derive(Clone, Copy)]
pub struct Waiter<'a> {
    /// The rank.
    pub rank: u32,
    /// Time on the monotonic clock at which the wait ends; `None` for no limit.
    pub until: Option<Duration>,
    /// Returns true if no change can come any more.
    pub gives_up: &'a (dyn Fn() -> bool + Sync),
}

/// Counts a waiter, until dropped.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(waiters: &'a AtomicU32) -> Self {
        waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(waiters)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Wakes all that wait for an event.
pub(super) fn wake(events: &AtomicU32) {
    events.fetch_add(1, Ordering::SeqCst);
    // Fails only for an unmapped word.
    let _ = futex::wake(events, futex::Flags::empty(), i32::MAX as u32);
}

/// Sleeps until the word differs from `seen`, at most for `time`.
fn sleep(events: &AtomicU32, seen: u32, time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // Ends also by signals, and if the word has changed before: the caller checks its condition in any case.
    let _ = futex::wait(events, futex::Flags::empty(), seen, Some(&time));
}

impl WindowMemory {
    /// Tries `attempt` until it returns a value, and again after each change of the rank's memory.
    ///
    /// # Errors
    /// - Those of `attempt`.
    /// - `EAGAIN` when the time is over.
    /// - That of [`Self::check_whole`], after an attempt; `EIO` if the waiter gives up.
    pub fn wait<T>(&self, waiter: &Waiter<'_>, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let (events, waiters) = self.waiting_words(waiter.rank)?;
        let is_limited = waiter.until.is_some_and(|until| until <= monotonic());
        for _ in 0..if is_limited { 1 } else { POLLS } {
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            spin_loop();
        }
        let _counted = Counted::new(waiters);
        loop {
            let seen = events.load(Ordering::SeqCst);
            // Before the last attempt: a value stored before the failure counts.
            let whole = self.check_whole(waiter.rank);
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            whole?;
            let left = waiter.until.map_or(SLICE, |until| until.saturating_sub(monotonic()).min(SLICE));
            if left.is_zero() {
                return Err(Errno::EAGAIN);
            }
            if (waiter.gives_up)() {
                return Err(Errno::EIO);
            }
            sleep(events, seen, left);
        }
    }

    /// Waits until a word of the rank has a value, as [`Self::wait`]. Stores before that change are visible then.
    ///
    /// # Errors
    /// As [`Self::wait`]; `EINVAL` if the offset is no multiple of 8 in the memory.
    pub fn wait_until(
        &self,
        waiter: &Waiter<'_>,
        offset: u64,
        (comparison, value): (Comparison, u64),
    ) -> Result<()> {
        self.wait(waiter, || Ok(self.test(waiter.rank, offset, (comparison, value))?.then_some(())))
    }

    /// Returns true if a word has a value. Stores before that change are visible then.
    ///
    /// # Errors
    /// `EINVAL` if the offset is no multiple of 8 in the memory.
    pub fn test(&self, rank: u32, offset: u64, (comparison, value): (Comparison, u64)) -> Result<bool> {
        Ok(comparison.holds(self.word(rank, offset)?.load(Ordering::Acquire), value))
    }
}
