//! Drives an endpoint: makes progress when there is work, and sleeps otherwise.
//!
//! If the provider has a file descriptor, the reactor wakes the transport. If not, senders ring a doorbell on a socket
//! ([`Transport::bell`]), and the transport polls while operations are in flight. An operation that exceeds the time limit breaks
//! its route. One that exceeds twice the limit shows that the endpoint is stuck: the transport closes it, and agents continue
//! over sockets.

use super::endpoint::{Endpoint, MemoryKey};
use super::events::{Events, Job};
use super::library::Library;
use super::offer::{Info, best};
use super::operations::{OPERATIONS, Operations};
use super::{Arrivals, OfiConfig, Provider, Remote, RouteId};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::reactor::{Edge, Reactor, Readiness, Registration, Source};
use tameike_io::os::runtime::{Promise, Resolver, Runtime, promise};
use tameike_io::slab::Frame;

/// Poll interval without a file descriptor.
const POLL_PAUSE: Duration = Duration::from_micros(50);
/// Interval of attempts to post queued operations.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Time of polling after a doorbell.
const BELL_TIME: Duration = Duration::from_millis(5);
/// Interval of doorbells while operations are in flight.
const RING_PAUSE: Duration = Duration::from_millis(2);
/// Interval of checks for stuck operations.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

struct Signal(Arc<Edge>);

impl Source for Signal {
    fn ready(&self, _: Readiness) {
        self.0.set();
    }
}

pub(crate) struct Transport {
    operations: Mutex<Operations>,
    edge: Arc<Edge>,
    /// The registration of the provider's descriptor, if any.
    signal: Mutex<Option<Registration>>,
    has_signal: bool,
    /// The end of the current polling.
    poll_until: Mutex<Duration>,
    ticking: AtomicBool,
    watching: AtomicBool,
    closed: AtomicBool,
    arrivals: OnceLock<Box<dyn Arrivals>>,
    runtime: Runtime,
    /// Time limit of an operation, after which its route is broken.
    limit: Duration,
    sent: AtomicU64,
    read: AtomicU64,
    provider: String,
    address: Vec<u8>,
    memory: Remote,
}

impl Transport {
    /// Opens an endpoint that peers reach at `host`. Within a host, `name` identifies it.
    pub(crate) fn open(
        config: &OfiConfig,
        (host, name): (&str, &str),
        limit: Duration,
        (runtime, reactor): (&Runtime, &Arc<Reactor>),
    ) -> std::result::Result<Arc<Self>, String> {
        let library = Library::load()?;
        let provider = config.provider.map_or_else(best, Ok)?;
        let explain = |why: String| format!("libfabric's provider {provider} cannot be used: {why}");
        let source = if provider == Provider::Shm { name } else { host };
        let info = Info::find(library, provider.name(), source).map_err(explain)?;
        let memory = config.slab.region();
        let mut endpoint =
            Endpoint::open(&info, library, memory, (OPERATIONS, runtime.random_u64())).map_err(explain)?;
        let edge = Arc::new(Edge::default());
        let signal = endpoint.waitable.and_then(|descriptor| {
            // SAFETY: the endpoint keeps it open, and is closed after the registration.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let signal = reactor.register(descriptor, Arc::new(Signal(edge.clone())));
            signal.inspect_err(|error| log::warn!("cannot watch the descriptor of libfabric: {error}")).ok()
        });
        let address = std::mem::take(&mut endpoint.address);
        let MemoryKey { key, address: start } = endpoint.memory;
        let (provider, has_signal) = (endpoint.provider.clone(), signal.is_some());
        let transport = Arc::new(Self {
            operations: Mutex::new(Operations::new(endpoint, config)?),
            edge,
            signal: Mutex::new(signal),
            has_signal,
            poll_until: Mutex::default(),
            ticking: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            arrivals: OnceLock::new(),
            runtime: runtime.clone(),
            limit,
            sent: AtomicU64::new(0),
            read: AtomicU64::new(0),
            provider,
            address,
            memory: Remote { key, address: start },
        });
        runtime.spawn(transport.clone().run());
        Ok(transport)
    }

    /// Sets the receiver of packets and events. Called once.
    pub(crate) fn attach(&self, arrivals: Box<dyn Arrivals>) {
        if self.arrivals.set(arrivals).is_err() {
            log::error!("ignored a second receiver for an endpoint");
        }
        self.edge.set();
    }

    /// The name of the provider in libfabric.
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// The location of this agent's slab.
    pub(crate) fn memory(&self) -> Remote {
        self.memory
    }

    /// Packets sent, and bytes read from peers.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// True if the sender must ring the doorbell of the peer.
    pub(crate) fn needs_bell(&self) -> bool {
        !self.has_signal
    }

    /// Creates a route to the endpoint at an address that its agent announced.
    pub(crate) fn connect(&self, address: &[u8]) -> std::result::Result<RouteId, String> {
        self.operations.lock().connect(address)
    }

    /// Ends a route and the sends on it, with `fault`.
    pub(crate) fn disconnect(&self, route: RouteId, fault: &Fault) {
        let mut events = Events::default();
        self.operations.lock().disconnect(route, fault, &mut events);
        self.deliver(events);
    }

    /// Sends a packet of at most [`super::PACKET_MAX`] bytes; `done` resolves when the provider has sent it.
    pub(crate) fn send(&self, route: RouteId, packet: Vec<u8>, done: Option<Resolver<Result<()>>>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.take(route, Job::Send { packet, done });
    }

    /// Reads bytes of a peer's slab into the start of a frame. Returns the frame once the network no longer writes to it.
    pub(crate) fn read(
        &self,
        route: RouteId,
        from: Remote,
        frame: Frame,
        length: u32,
    ) -> Promise<(Frame, Result<()>)> {
        let (filled, promise) = promise();
        let from = MemoryKey { key: from.key, address: from.address };
        self.read.fetch_add(u64::from(length), Ordering::Relaxed);
        self.take(route, Job::Read { frame, length, from, filled });
        promise
    }

    fn take(&self, route: RouteId, job: Job) {
        let (mut events, now) = (Events::default(), self.runtime.clock.monotonic());
        let needs_poll = {
            let mut operations = self.operations.lock();
            operations.take(route, job, now, &mut events);
            !self.has_signal || operations.has_waiting()
        };
        self.deliver(events);
        if needs_poll {
            self.edge.set();
        }
    }

    /// Fails the queued operations of a route.
    pub(crate) fn drop_waiting(&self, route: RouteId, fault: &Fault) {
        let mut events = Events::default();
        self.operations.lock().drop_waiting(route, fault, &mut events);
        self.deliver(events);
    }

    /// True if an operation of the route is in flight.
    pub(crate) fn is_busy(&self, route: RouteId) -> bool {
        self.operations.lock().is_route_busy(route)
    }

    /// Handles a doorbell of a peer.
    pub(crate) fn bell(&self) {
        self.poll_for(BELL_TIME);
    }

    /// Polls for `time`: while providers connect, they do not signal all work.
    pub(crate) fn poll_for(&self, time: Duration) {
        let until = self.runtime.clock.monotonic() + time;
        {
            let mut end = self.poll_until.lock();
            *end = until.max(*end);
        }
        self.edge.set();
    }

    pub(crate) fn close(&self, why: &str) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Before the descriptor is closed.
        drop(self.signal.lock().take());
        let (mut events, fault) = (
            Events::default(),
            Fault::new(Errno::ECONNRESET, format!("libfabric's endpoint is closed: {why}")),
        );
        self.operations.lock().close(&fault, &mut events);
        self.deliver(events);
        if let Some(arrivals) = self.arrivals.get() {
            arrivals.closed(why);
        }
        self.edge.set();
    }

    /// Behaves as if the process were killed. Two endpoints of one process share the memory of the provider within a host, so
    /// closing one would break the other.
    #[cfg(test)]
    pub(crate) fn abandon(&self) {
        let address = String::from_utf8_lossy(&self.address).into_owned();
        let Some(name) = address.strip_prefix("fi_shm://") else { return };
        let _ = std::fs::remove_file(format!("/dev/shm/{}", name.trim_end_matches('\0')));
        self.operations.lock().abandon();
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.edge.take().await;
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            while !self.make_progress() {
                tameike_io::os::runtime::yield_now().await;
            }
            self.tick_if_needed();
            self.watch_if_needed();
        }
    }

    /// Makes progress. True if all is done and the signal will report more.
    fn make_progress(&self) -> bool {
        if self.arrivals.get().is_none() {
            return true;
        }
        let (mut events, now) = (Events::default(), self.runtime.clock.monotonic());
        let may_wait = {
            let mut operations = self.operations.lock();
            let quiet = operations.progress(now, &mut events);
            let may_wait = |endpoint: &mut Endpoint| !self.has_signal || endpoint.may_wait();
            quiet && operations.endpoint().is_none_or(may_wait)
        };
        let broken = events.broken.take();
        self.deliver(events);
        match broken {
            Some(why) => {
                log::error!("the libfabric endpoint failed; agents continue over sockets: {why}");
                self.close(&why);
                true
            }
            None => may_wait,
        }
    }

    fn deliver(&self, events: Events) {
        events.sent.into_iter().for_each(|(done, result)| done.resolve(result));
        events.filled.into_iter().for_each(|(filled, frame, result)| filled.resolve((frame, result)));
        let Some(arrivals) = self.arrivals.get() else { return };
        events.packets.into_iter().for_each(|packet| arrivals.packet(packet));
        if !self.has_signal {
            events.posted.into_iter().for_each(|route| arrivals.posted(route));
        }
        events.failed.into_iter().for_each(|(route, why)| arrivals.broken(route, &why));
    }

    fn pause(&self) -> Option<Duration> {
        let is_polling = *self.poll_until.lock() > self.runtime.clock.monotonic();
        let operations = self.operations.lock();
        let must_poll = !self.has_signal && (operations.is_busy() || is_polling);
        let must_retry = operations.has_waiting() || is_polling;
        must_poll.then_some(POLL_PAUSE).or(must_retry.then_some(RETRY_PAUSE))
    }

    /// Starts the polling task if polling is needed.
    fn tick_if_needed(self: &Arc<Self>) {
        let Some(mut pause) = self.pause() else { return };
        if self.ticking.swap(true, Ordering::AcqRel) {
            return;
        }
        let transport = self.clone();
        self.runtime.spawn(async move {
            let mut rung = transport.runtime.clock.monotonic();
            loop {
                transport.runtime.sleep(pause).await;
                transport.ring_doorbells(&mut rung);
                match transport.pause() {
                    Some(next) if !transport.closed.load(Ordering::SeqCst) => pause = next,
                    _ => break,
                }
                transport.edge.set();
            }
            transport.ticking.store(false, Ordering::Release);
            transport.edge.set();
        });
    }

    /// Rings the doorbells of peers whose provider does not signal the operations in flight.
    fn ring_doorbells(&self, rung: &mut Duration) {
        let now = self.runtime.clock.monotonic();
        if self.has_signal || now.saturating_sub(*rung) < RING_PAUSE {
            return;
        }
        let routes = self.operations.lock().in_flight(*rung);
        *rung = now;
        if let Some(arrivals) = self.arrivals.get() {
            routes.into_iter().for_each(|route| arrivals.posted(route));
        }
    }

    /// Starts the task that breaks routes with late operations, and closes a stuck endpoint.
    fn watch_if_needed(self: &Arc<Self>) {
        if !self.operations.lock().is_busy() || self.watching.swap(true, Ordering::AcqRel) {
            return;
        }
        let transport = self.clone();
        self.runtime.spawn(async move {
            loop {
                transport.runtime.sleep(WATCH_PAUSE).await;
                let (now, limit) = (transport.runtime.clock.monotonic(), transport.limit);
                let is_busy = transport.operations.lock().is_busy();
                let late = |limit| transport.operations.lock().in_flight(now.saturating_sub(limit));
                if !late(2 * limit).is_empty() {
                    let why = format!("an operation did not complete within {:.0?}", 2 * limit);
                    log::error!("the libfabric endpoint is stuck; agents continue over sockets: {why}");
                    transport.close(&why);
                    break;
                }
                if let Some(arrivals) = transport.arrivals.get() {
                    let why = format!("an operation did not complete within {limit:.0?}");
                    late(limit).into_iter().for_each(|route| arrivals.broken(route, &why));
                }
                if !is_busy {
                    break;
                }
                transport.edge.set();
            }
            transport.watching.store(false, Ordering::Release);
            transport.edge.set();
        });
    }
}
