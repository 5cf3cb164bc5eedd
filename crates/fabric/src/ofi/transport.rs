//! An endpoint at work: moved on whenever there is something to move, and asleep when there is nothing.
//!
//! A provider that can tell that there is something to do has the reactor woken by it. With one that cannot, whoever has sent
//! something rings a bell on a socket ([`Transport::bell`]), and while something is under way here it is looked at again and again. Nothing is waited for
//! without end: what has not ended within the time limit breaks its route; what has not within twice that shows that the endpoint is stuck: it is
//! closed, and sockets go on.

use super::endpoint::{Endpoint, MemoryKey};
use super::events::{Arrivals, Events, Job};
use super::offer::{Info, best};
use super::operations::{OPERATIONS, Operations};
use super::{OfiConfig, Provider, library::Library};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::reactor::{Edge, Reactor, Readiness, Registration, Source};
use tameike_io::os::runtime::{Promise, Resolver, Runtime, promise};
use tameike_io::slab::Frame;

pub(crate) use super::events::RouteId;

/// Between two looks at what a provider cannot tell of.
const LOOK_PAUSE: Duration = Duration::from_micros(50);
/// Between two attempts to post what could not be posted.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// How long after a bell more is looked for.
const BELL_TIME: Duration = Duration::from_millis(5);
/// Between two bells about what is under way.
const RING_PAUSE: Duration = Duration::from_millis(2);
/// Between two looks whether something is stuck.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of another agent's slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The key of its memory.
    pub(crate) key: u64,
    /// The address of the first byte, as its provider counts.
    pub(crate) address: u64,
}

struct Signal(Arc<Edge>);

impl Source for Signal {
    fn ready(&self, _: Readiness) {
        self.0.set();
    }
}

/// An endpoint at work.
pub(crate) struct Transport {
    operations: Mutex<Operations>,
    edge: Arc<Edge>,
    /// Watches over the provider's descriptor, where it has one.
    signal: Mutex<Option<Registration>>,
    has_signal: bool,
    /// Until when it is looked at again and again.
    lively_until: Mutex<Duration>,
    ticking: AtomicBool,
    watching: AtomicBool,
    closed: AtomicBool,
    arrivals: OnceLock<Box<dyn Arrivals>>,
    runtime: Runtime,
    /// How long one operation may take before its route is broken.
    limit: Duration,
    sent: AtomicU64,
    read: AtomicU64,
    provider: String,
    address: Vec<u8>,
    memory: Remote,
}

impl Transport {
    /// Opens an endpoint for a host, by the name or address of which others of the network reach it. Within a host agents are told
    /// apart by `name`.
    ///
    /// # Errors
    /// Why there is none, for a person.
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
            // SAFETY: the endpoint keeps it open, and is closed after the watch has ended.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let signal = reactor.register(descriptor, Arc::new(Signal(edge.clone())));
            signal.inspect_err(|error| log::warn!("libfabric's descriptor cannot be watched: {error}")).ok()
        });
        let address = std::mem::take(&mut endpoint.address);
        let MemoryKey { key, address: start } = endpoint.memory;
        let (provider, has_signal) = (endpoint.provider.clone(), signal.is_some());
        let transport = Arc::new(Self {
            operations: Mutex::new(Operations::new(endpoint, config)?),
            edge,
            signal: Mutex::new(signal),
            has_signal,
            lively_until: Mutex::default(),
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

    /// Says who takes what arrives.
    pub(crate) fn attach(&self, arrivals: Box<dyn Arrivals>) {
        if self.arrivals.set(arrivals).is_err() {
            log::error!("a second receiver was attached to an endpoint, and is ignored");
        }
        self.edge.set();
    }

    /// As libfabric calls it.
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// Where others reach this endpoint.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Where others read this agent's slab.
    pub(crate) fn memory(&self) -> Remote {
        self.memory
    }

    /// Packets sent, and bytes read from other agents' memory.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Whether who sends something must tell the other end so.
    pub(crate) fn needs_bell(&self) -> bool {
        !self.has_signal
    }

    /// A route to the endpoint at an address that its agent has told.
    ///
    /// # Errors
    /// What the provider says of the address.
    pub(crate) fn connect(&self, address: &[u8]) -> std::result::Result<RouteId, String> {
        self.operations.lock().connect(address)
    }

    /// Ends a route, and what is being sent on it, with `fault`.
    pub(crate) fn disconnect(&self, route: RouteId, fault: &Fault) {
        let mut events = Events::default();
        self.operations.lock().disconnect(route, fault, &mut events);
        self.tell(events);
    }

    /// Sends a packet of at most [`super::PACKET_MAX`] bytes; `done` is told when the provider has sent it.
    pub(crate) fn send(&self, route: RouteId, packet: Vec<u8>, done: Option<Resolver<Result<()>>>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.take(route, Job::Send { packet, done });
    }

    /// Reads bytes of another agent's slab to the start of a frame, which comes back when nobody writes to it any more.
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
        let needs_looks = {
            let mut operations = self.operations.lock();
            operations.take(route, job, now, &mut events);
            !self.has_signal || operations.has_waiting()
        };
        self.tell(events);
        if needs_looks {
            self.edge.set();
        }
    }

    /// Gives up what could not be sent on a route until now.
    pub(crate) fn drop_waiting(&self, route: RouteId, fault: &Fault) {
        let mut events = Events::default();
        self.operations.lock().drop_waiting(route, fault, &mut events);
        self.tell(events);
    }

    /// Whether something is under way on a route.
    pub(crate) fn is_busy(&self, route: RouteId) -> bool {
        self.operations.lock().is_route_busy(route)
    }

    /// The other end says that it has sent something.
    pub(crate) fn bell(&self) {
        self.be_lively(BELL_TIME);
    }

    /// Looks again and again for some time: providers do not tell of all that is to be done while they connect.
    pub(crate) fn be_lively(&self, time: Duration) {
        let until = self.runtime.clock.monotonic() + time;
        {
            let mut lively = self.lively_until.lock();
            *lively = until.max(*lively);
        }
        self.edge.set();
    }

    /// Closes the endpoint.
    pub(crate) fn close(&self, why: &str) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Before the descriptor that it watches goes.
        drop(self.signal.lock().take());
        let (mut events, fault) = (
            Events::default(),
            Fault::new(Errno::ECONNRESET, format!("libfabric's endpoint is closed: {why}")),
        );
        self.operations.lock().close(&fault, &mut events);
        self.tell(events);
        if let Some(arrivals) = self.arrivals.get() {
            arrivals.closed(why);
        }
        self.edge.set();
    }

    /// As if the process were killed. Two endpoints of one process share the memory of the provider within a host, so that closing
    /// one would take it from the other.
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
            while !self.move_on() {
                tameike_io::os::runtime::give_way().await;
            }
            self.tick_if_needed();
            self.watch_if_needed();
        }
    }

    /// Moves what can be moved. Whether that was all, and the signal will tell of more.
    fn move_on(&self) -> bool {
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
        self.tell(events);
        match broken {
            Some(why) => {
                log::error!("libfabric's endpoint is of no more use, agents go on over sockets: {why}");
                self.close(&why);
                true
            }
            None => may_wait,
        }
    }

    fn tell(&self, events: Events) {
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
        let is_lively = *self.lively_until.lock() > self.runtime.clock.monotonic();
        let operations = self.operations.lock();
        let must_look = !self.has_signal && (operations.is_busy() || is_lively);
        let must_retry = operations.has_waiting() || is_lively;
        must_look.then_some(LOOK_PAUSE).or(must_retry.then_some(RETRY_PAUSE))
    }

    /// Has itself moved on again and again while that is needed.
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
                transport.ring_again(&mut rung);
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

    /// Where the other end is not told by its provider that it has to help with what is under way.
    fn ring_again(&self, rung: &mut Duration) {
        let now = self.runtime.clock.monotonic();
        if self.has_signal || now.saturating_sub(*rung) < RING_PAUSE {
            return;
        }
        let routes = self.operations.lock().under_way(*rung);
        *rung = now;
        if let Some(arrivals) = self.arrivals.get() {
            routes.into_iter().for_each(|route| arrivals.posted(route));
        }
    }

    /// Breaks the routes, and in the end closes the endpoint, when something is under way for longer than anything may take.
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
                let late = |limit| transport.operations.lock().under_way(now.saturating_sub(limit));
                if !late(2 * limit).is_empty() {
                    let why = format!("something has not ended within {:.0?}", 2 * limit);
                    log::error!("libfabric's endpoint is stuck, agents go on over sockets: {why}");
                    transport.close(&why);
                    break;
                }
                if let Some(arrivals) = transport.arrivals.get() {
                    let why = format!("something has not ended within {limit:.0?}");
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
