//! Drives a ring: the reactor's thread submits all requests and delivers all completions.
//!
//! io_uring ties a request to the submitting thread: the kernel cancels it when that thread ends, and wakes that thread to
//! complete it. So the reactor's thread, which lives as long as the agent, submits all of them. One system call submits the
//! requests of one round of the reactor; requests that find the ring full wait in order.

use super::ring::{Outcome, Request, Ring};
use crate::os::reactor::{Edge, Reactor, Readiness, Registration, Source};
use crate::os::runtime::Runtime;
use crate::slab::Slab;
use parking_lot::Mutex;
use rustix::io::Errno as Os;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed submission.
const RETRY_TIME: Duration = Duration::from_millis(10);

pub(super) struct Driver {
    /// Used on the reactor's thread; `None` after the close.
    ring: Mutex<Option<Ring>>,
    waiting: Mutex<VecDeque<Request>>,
    /// Set if there is a request to submit, or a completion.
    called: Edge,
}

impl Driver {
    /// Drives `ring` while the registration exists.
    pub(super) fn new(ring: Ring, reactor: &Arc<Reactor>) -> std::io::Result<(Arc<Self>, Registration)> {
        let driver =
            Arc::new(Self { ring: Mutex::default(), waiting: Mutex::default(), called: Edge::default() });
        let registration = reactor.register(&ring, driver.clone())?;
        *driver.ring.lock() = Some(ring);
        Ok((driver, registration))
    }

    /// Registers all frames with the kernel, if the user may lock that much memory.
    pub(super) fn register(&self, slab: &Arc<Slab>) {
        let registered = self.ring.lock().as_mut().map_or(Ok(()), |ring| ring.register(slab));
        if let Err(error) = registered {
            log::info!(
                "the frames are not registered for disk I/O, since they cannot be locked in memory: {error}"
            );
        }
    }

    /// Submits requests until the ring is closed.
    pub(super) async fn run(self: Arc<Self>, runtime: Runtime) {
        loop {
            self.called.take().await;
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    log::warn!("cannot submit disk requests ({error}); retrying");
                    runtime.sleep(RETRY_TIME).await;
                    self.called.set();
                }
            }
        }
    }

    pub(super) fn enqueue(&self, request: Request) {
        self.waiting.lock().push_back(request);
        self.called.set();
    }

    fn next(&self) -> Option<Request> {
        self.waiting.lock().pop_front()
    }

    /// Handles completions and submits queued requests. False if the ring is closed.
    fn turn(&self) -> std::io::Result<bool> {
        let mut ended = Vec::new();
        let turned = self.turn_ring(&mut ended);
        ended.into_iter().for_each(|(request, outcome)| request.end(outcome));
        turned
    }

    fn turn_ring(&self, ended: &mut Vec<(Request, Outcome)>) -> std::io::Result<bool> {
        let mut ring = self.ring.lock();
        let Some(ring) = ring.as_mut() else { return Ok(false) };
        loop {
            ring.reap(ended);
            let mut pushed = false;
            while ring.has_free_slot() {
                let Some(request) = self.next() else { break };
                ring.push(request);
                pushed = true;
            }
            // Also submits what an earlier turn could not.
            ring.submit()?;
            if !pushed {
                return Ok(true);
            }
        }
    }

    /// Waits for the requests that the kernel has, and drops the ring. Queued requests fail.
    pub(super) fn close(&self) {
        let ring = self.ring.lock().take();
        drop(ring);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(|request| request.end(Err(Os::CANCELED)));
        self.called.set();
    }
}

impl Source for Driver {
    fn ready(&self, _: Readiness) {
        if self.turn().is_err() {
            self.called.set();
        }
    }
}
