//! An event loop: one thread that sleeps in `epoll` and runs woken tasks, due timers, and sources (descriptors) that became
//! ready.
//!
//! Its only system call per round is `epoll_wait`, and it makes none while idle. A wake-up from another thread writes to an
//! eventfd only if the thread sleeps; one from the thread itself never does. Callbacks and tasks must not block, since they delay
//! the rest of the round.

mod edge;
pub(super) mod task;
mod timer;
mod watched;

#[cfg(test)]
mod tests;

pub use edge::Edge;
pub(super) use timer::Sleep;
pub use watched::Watched;

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use task::Task;
use timer::Timers;

const WAKEUP_TOKEN: u64 = 0;
const EVENTS_PER_ROUND: usize = 256;

/// The readiness of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// A read may return data.
    pub readable: bool,
    /// A write may accept data.
    pub writable: bool,
    /// The other end has closed, or there is an error, which reads return.
    pub hangup: bool,
}

/// Called on the reactor's thread when its descriptor becomes ready. Must not block.
pub trait Source: Send + Sync {
    /// Handles a change of readiness (edge-triggered).
    fn ready(&self, readiness: Readiness);
}

/// The event loop. [`super::system::System`] owns its thread.
pub struct Reactor {
    epoll: OwnedFd,
    wakeup: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
    ready: Mutex<VecDeque<Arc<Task>>>,
    timers: Mutex<Timers>,
    sources: Mutex<BTreeMap<u64, Arc<dyn Source>>>,
    next_token: AtomicU64,
}

/// The registration of a descriptor, which ends on drop.
pub struct Registration {
    reactor: Arc<Reactor>,
    token: u64,
}

impl Registration {
    /// Sets whether the source is called when its descriptor becomes writable. If it is so already, that is reported at once.
    fn report_writable(&self, descriptor: impl AsFd, writable: bool) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        Ok(epoll::modify(&self.reactor.epoll, descriptor, data, interest(writable))?)
    }
}

/// The events that are reported, edge-triggered.
fn interest(writable: bool) -> epoll::EventFlags {
    let reads = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    if writable { reads | epoll::EventFlags::OUT } else { reads }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let source = self.reactor.sources.lock().remove(&self.token);
        drop(source); // outside the lock, since its drop may run any code
    }
}

impl Reactor {
    pub(super) fn new() -> std::io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge triggered: each write is a separate event, so that the counter need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wakeup, epoll::EventData::new_u64(WAKEUP_TOKEN), flags)?;
        Ok(Arc::new(Self {
            epoll,
            wakeup,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            ready: Mutex::default(),
            timers: Mutex::default(),
            sources: Mutex::default(),
            next_token: AtomicU64::new(WAKEUP_TOKEN + 1),
        }))
    }

    /// Calls `source` for every change of readiness of `descriptor`, until the registration is dropped. The first call reports
    /// the initial readiness.
    pub fn register(
        self: &Arc<Self>,
        descriptor: impl AsFd,
        source: Arc<dyn Source>,
    ) -> std::io::Result<Registration> {
        self.add(descriptor, source, true)
    }

    /// As [`Self::register`], for writes only while [`Registration::report_writable`] says so.
    fn add(
        self: &Arc<Self>,
        descriptor: impl AsFd,
        source: Arc<dyn Source>,
        writable: bool,
    ) -> std::io::Result<Registration> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        self.sources.lock().insert(token, source);
        let registration = Registration { reactor: self.clone(), token };
        epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(token), interest(writable))?;
        Ok(registration)
    }

    pub(super) fn enqueue(&self, task: Arc<Task>) {
        self.ready.lock().push_back(task);
        self.wake();
    }

    /// Wakes the thread if it sleeps.
    fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full; then a wake-up is pending anyway.
            let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The main loop of the thread.
    pub(super) fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS_PER_ROUND);
        let mut batch = VecDeque::new();
        while !self.stopping.load(Ordering::SeqCst) {
            std::mem::swap(&mut batch, &mut *self.ready.lock());
            batch.drain(..).for_each(Task::run);
            self.fire_timers();
            events.clear();
            self.wait(&mut events);
            for event in &events {
                self.dispatch(*event);
            }
        }
        // Drops the remaining tasks without polling them.
        let tasks = std::mem::take(&mut *self.ready.lock());
        let timers = std::mem::take(&mut *self.timers.lock());
        let sources = std::mem::take(&mut *self.sources.lock());
        drop((tasks, timers, sources));
    }

    /// Sleeps until there is work. It sets `sleeping` before the last check for work, and producers check `sleeping` after they
    /// add work, so that no wake-up is lost.
    fn wait(&self, events: &mut Vec<epoll::Event>) {
        self.sleeping.store(true, Ordering::SeqCst);
        let timeout = if !self.ready.lock().is_empty() || self.stopping.load(Ordering::SeqCst) {
            Some(Duration::ZERO)
        } else {
            let next = self.timers.lock().next();
            next.map(|deadline| deadline.saturating_sub(super::process::monotonic()))
        };
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().min(1 << 20) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => log::error!("cannot wait for events: {error}"),
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn fire_timers(&self) {
        let due = self.timers.lock().due(super::process::monotonic);
        due.into_iter().for_each(std::task::Waker::wake);
    }

    fn dispatch(&self, event: epoll::Event) {
        let (token, flags) = (event.data.u64(), event.flags);
        if token == WAKEUP_TOKEN {
            return;
        }
        let source = self.sources.lock().get(&token).cloned();
        if let Some(source) = source {
            let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let hangup = flags.intersects(ended);
            source.ready(Readiness {
                readable: hangup || flags.contains(epoll::EventFlags::IN),
                writable: hangup || flags.contains(epoll::EventFlags::OUT),
                hangup,
            });
        }
    }
}
