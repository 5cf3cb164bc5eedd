//! Drives a ring: whoever asks, the reactor's thread submits, and tells of what has ended.
//!
//! io_uring ties a request to the thread that submits it: when that thread ends, so does the request, and the kernel
//! wakes the thread to complete it. So it is always the one thread that lives as long as the agent. What was asked for
//! in one round of the reactor is submitted by one system call; what finds the ring full waits in order.

use super::ring::{Outcome, Request, Ring};
use crate::os::reactor::{Edge, Reactor, Readiness, Registration, Source};
use crate::os::runtime::Runtime;
use crate::slab::Slab;
use parking_lot::Mutex;
use rustix::io::Errno as Os;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a submission that the kernel did not take is tried again.
const RETRY_TIME: Duration = Duration::from_millis(10);

pub(super) struct Driver {
    /// Used on the reactor's thread; none any more once it is closed.
    ring: Mutex<Option<Ring>>,
    waiting: Mutex<VecDeque<Request>>,
    /// There is something to submit, or an end.
    called: Edge,
}

impl Driver {
    /// Drives `ring` while the registration lives.
    ///
    /// # Errors
    /// When the ring cannot be watched.
    pub(super) fn new(ring: Ring, reactor: &Arc<Reactor>) -> std::io::Result<(Arc<Self>, Registration)> {
        let driver =
            Arc::new(Self { ring: Mutex::default(), waiting: Mutex::default(), called: Edge::default() });
        let registration = reactor.register(&ring, driver.clone())?;
        *driver.ring.lock() = Some(ring);
        Ok((driver, registration))
    }

    /// Has the kernel know all frames where the user may lock so much memory.
    pub(super) fn register(&self, slab: &Arc<Slab>) {
        let registered = self.ring.lock().as_mut().map_or(Ok(()), |ring| ring.register(slab));
        if let Err(error) = registered {
            log::info!(
                "the kernel looks up the frames of each call to the disk, as it cannot lock them all: {error}"
            );
        }
    }

    /// Submits what is asked for, until the ring is closed.
    pub(super) async fn run(self: Arc<Self>, runtime: Runtime) {
        loop {
            self.called.take().await;
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    log::warn!("the kernel takes no calls to a disk for now ({error}); trying again");
                    runtime.sleep(RETRY_TIME).await;
                    self.called.set();
                }
            }
        }
    }

    /// Takes a request in.
    pub(super) fn ask(&self, request: Request) {
        self.waiting.lock().push_back(request);
        self.called.set();
    }

    fn next(&self) -> Option<Request> {
        self.waiting.lock().pop_front()
    }

    /// Takes out what has ended and submits what waits; false when the ring is closed.
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
            while ring.has_room() {
                let Some(request) = self.next() else { break };
                ring.push(request);
                pushed = true;
            }
            // Also what an earlier turn could not submit.
            ring.submit()?;
            if !pushed {
                return Ok(true);
            }
        }
    }

    /// Waits until the kernel has ended what it was given, and gives the ring up. What still waits is not done.
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
