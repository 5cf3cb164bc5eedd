//! Tasks: futures that one thread at a time polls to completion.
//!
//! The spawning thread polls a task first, and the reactor's thread polls it after each wake-up.
//!
//! ```text
//!            wake                 run               wake
//!   IDLE ------------> QUEUED ---------> RUNNING ---------> NOTIFIED
//!    ^                   ^                 | | pending         |
//!    +-------------------|-----------------+ |                 | pending
//!                        +-------------------|-----------------+
//!                                            +--> DONE (from NOTIFIED too)
//! ```

use super::Reactor;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::task::{Context, Poll, Wake, Waker};

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const NOTIFIED: u8 = 3;
const DONE: u8 = 4;

pub(crate) struct Task {
    state: AtomicU8,
    /// Locked only by the thread in `run`, so never contended.
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    reactor: Arc<Reactor>,
}

impl Task {
    pub(crate) fn spawn(reactor: &Arc<Reactor>, future: BoxFuture<'static, ()>) {
        let task =
            Self { state: AtomicU8::new(QUEUED), future: Mutex::new(Some(future)), reactor: reactor.clone() };
        Arc::new(task).run();
    }

    /// Polls the task once. Only for a task in state `QUEUED`, called by the thread that dequeued it.
    pub(crate) fn run(self: Arc<Self>) {
        self.state.store(RUNNING, Release);
        let mut slot = self.future.lock();
        let Some(future) = slot.as_mut() else { return };
        let waker = Waker::from(self.clone());
        let polled =
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Ok(Poll::Pending) => {
                drop(slot);
                if self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_err() {
                    self.state.store(QUEUED, Release);
                    let reactor = self.reactor.clone();
                    reactor.enqueue(self);
                }
                return;
            }
            Ok(Poll::Ready(())) => {}
            Err(_) => log::error!("a task panicked and was dropped"),
        }
        self.state.store(DONE, Release);
        let ended = slot.take();
        drop(slot);
        drop(ended);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.load(Acquire);
        loop {
            let next = match state {
                IDLE => QUEUED,
                RUNNING => NOTIFIED,
                _ => return,
            };
            match self.state.compare_exchange_weak(state, next, AcqRel, Acquire) {
                Ok(IDLE) => {
                    let reactor = self.reactor.clone();
                    return reactor.enqueue(self);
                }
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }
}
