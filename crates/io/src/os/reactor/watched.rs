//! A nonblocking descriptor with awaitable readiness, for at most one reading and one writing task.

use super::{Edge, Reactor, Readiness, Registration, Source};
use rustix::io::Errno as OsErrno;
use std::io::{ErrorKind, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct Edges {
    read: Edge,
    write: Edge,
    hangup: AtomicBool,
}

impl Source for Edges {
    fn ready(&self, readiness: Readiness) {
        if readiness.hangup {
            self.hangup.store(true, Ordering::Release);
        }
        if readiness.readable {
            self.read.set();
        }
        if readiness.writable {
            self.write.set();
        }
    }
}

/// A nonblocking descriptor registered with the reactor.
pub struct Watched<D> {
    // Declared first, so that the registration ends before the descriptor is closed.
    registration: Registration,
    edges: Arc<Edges>,
    descriptor: D,
}

impl<D: AsFd> Watched<D> {
    /// Registers `descriptor`, which must be nonblocking.
    pub fn new(reactor: &Arc<Reactor>, descriptor: D) -> std::io::Result<Self> {
        let edges = Arc::new(Edges::default());
        let registration = reactor.add(&descriptor, edges.clone(), false)?;
        Ok(Self { registration, edges, descriptor })
    }

    /// The descriptor.
    pub fn get(&self) -> &D {
        &self.descriptor
    }

    /// Calls `attempt` each time the descriptor may be readable, until the result is not `WouldBlock`.
    pub async fn read_with<T>(
        &self,
        mut attempt: impl FnMut(&D) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        loop {
            self.edges.read.take().await;
            let result = attempt(&self.descriptor);
            if !result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                self.edges.read.remain();
                return result;
            }
        }
    }

    /// Waits until the descriptor may be writable, after a write that would have blocked.
    ///
    /// # Errors
    /// Those of epoll.
    pub async fn writable(&self) -> std::io::Result<()> {
        // Only now: otherwise the reactor would wake up whenever the peer of a socket has read something.
        self.registration.report_writable(&self.descriptor, true)?;
        self.edges.write.take().await;
        self.registration.report_writable(&self.descriptor, false)
    }

    /// Reads from a stream into `first`, and further bytes into `second`; 0 at the end of the stream.
    pub async fn read(&self, first: &mut [u8], second: &mut [u8]) -> std::io::Result<usize> {
        let size = first.len() + second.len();
        loop {
            self.edges.read.take().await;
            let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
            match rustix::io::readv(&self.descriptor, slices) {
                Ok(count) => {
                    // A short read has drained the socket (epoll(7)), so a new edge reports more data; but the end of the stream
                    // is reported only once.
                    if count == size || self.edges.hangup.load(Ordering::Acquire) {
                        self.edges.read.remain();
                    }
                    return Ok(count);
                }
                Err(OsErrno::AGAIN) => {}
                Err(OsErrno::INTR) => {
                    self.edges.read.remain();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
