//! Timers of the event loop.

use super::Reactor;
use crate::os::process::monotonic;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A deadline, and a number that distinguishes equal deadlines.
type Key = (Duration, u64);

#[derive(Default)]
pub(super) struct Timers {
    waiting: BTreeMap<Key, Waker>,
    counter: u64,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Duration> {
        self.waiting.first_key_value().map(|(key, _)| key.0)
    }

    /// Removes the due timers. Reads the clock only if there are timers.
    pub(super) fn due(&mut self, now: impl Fn() -> Duration) -> Vec<Waker> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let later = self.waiting.split_off(&(now() + Duration::from_nanos(1), 0));
        std::mem::replace(&mut self.waiting, later).into_values().collect()
    }
}

/// Completes at its deadline.
pub(in crate::os) struct Sleep {
    reactor: Arc<Reactor>,
    deadline: Duration,
    key: Option<Key>,
}

impl Sleep {
    pub(in crate::os) fn new(reactor: Arc<Reactor>, time: Duration) -> Self {
        Self { reactor, deadline: monotonic().saturating_add(time), key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if monotonic() >= self.deadline {
            return Poll::Ready(());
        }
        let mut timers = self.reactor.timers.lock();
        let key = self.key.unwrap_or_else(|| {
            timers.counter += 1;
            (self.deadline, timers.counter)
        });
        let replaced = timers.waiting.insert(key, context.waker().clone());
        let first = timers.next() == Some(self.deadline);
        drop(timers);
        drop(replaced); // outside the lock, since its drop may drop a task with other timers
        if first && self.key.is_none() {
            self.reactor.wake();
        }
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.reactor.timers.lock().waiting.remove(&key);
            drop(waker);
        }
    }
}
