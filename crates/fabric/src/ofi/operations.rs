//! The operations of an endpoint: queued, in flight, completed.

use super::buffers::{Buffers, SLOTS_PER_FRAME};
use super::endpoint::{Completion, Endpoint, Posted};
use super::events::{Done, Events, Filled, Job, broken, ended};
use super::{OfiConfig, PACKET_MAX, Provider, RouteId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr::NonNull;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::slab::Frame;

const RECEIVES: usize = SLOTS_PER_FRAME;
const SENDS: usize = SLOTS_PER_FRAME;
/// Bound on concurrent reads; more are queued.
const READS: usize = 128;
/// Numbers of operations: first receives, then sends, then reads.
pub(super) const OPERATIONS: usize = RECEIVES + SENDS + READS;
/// Bound on the queue of a route, as for a socket.
const QUEUE_MAX: usize = 16 << 10;

/// The state of an operation number.
enum Operation {
    Idle,
    Receive,
    Send { route: RouteId, done: Option<Done>, since: Duration },
    Read { route: RouteId, frame: Frame, filled: Filled, since: Duration },
}

struct Route {
    address: Vec<u8>,
    number: u64,
    queue: VecDeque<Job>,
}

pub(super) struct Operations {
    // Declared first, so that it is dropped before its buffers.
    endpoint: Option<Endpoint>,
    buffers: Buffers,
    operations: Vec<Operation>,
    idle_sends: Vec<usize>,
    idle_reads: Vec<usize>,
    /// Receives to post again.
    unposted: Vec<usize>,
    routes: BTreeMap<RouteId, Route>,
    next_route: u64,
    /// True for the provider within a host: as of 1.17 it fails if an address is removed while its peer sends. So its addresses
    /// are kept; their number is bounded by the agents of this host.
    keeps_addresses: bool,
    /// Known addresses, with the library's number and the count of routes.
    addresses: BTreeMap<Vec<u8>, (u64, u32)>,
    /// Routes with a queue.
    waiting: BTreeSet<RouteId>,
    found: Vec<Completion>,
}

impl Operations {
    /// Creates the state and posts the receives.
    pub(super) fn new(endpoint: Endpoint, config: &OfiConfig) -> Result<Self, String> {
        let buffers =
            Buffers::new(&config.frames).ok_or("no frames are left for messages: raise --memory")?;
        let operations = (0..OPERATIONS).map(|_| Operation::Idle).collect();
        let mut all = Self {
            keeps_addresses: Provider::Shm.is_called(&endpoint.provider),
            endpoint: Some(endpoint),
            buffers,
            operations,
            idle_sends: (RECEIVES..RECEIVES + SENDS).rev().collect(),
            idle_reads: (RECEIVES + SENDS..OPERATIONS).rev().collect(),
            unposted: (0..RECEIVES).collect(),
            routes: BTreeMap::new(),
            next_route: 0,
            addresses: BTreeMap::new(),
            waiting: BTreeSet::new(),
            found: Vec::new(),
        };
        all.receive()?;
        Ok(all)
    }

    pub(super) fn endpoint(&mut self) -> Option<&mut Endpoint> {
        self.endpoint.as_mut()
    }

    /// Creates a route to the endpoint at `address`.
    pub(super) fn connect(&mut self, address: &[u8]) -> Result<RouteId, String> {
        let endpoint = self.endpoint.as_mut().ok_or("the endpoint is closed")?;
        let number = match self.addresses.get_mut(address) {
            Some((number, routes)) => {
                *routes += 1;
                *number
            }
            None => {
                let number = endpoint.insert(address)?;
                self.addresses.insert(address.to_vec(), (number, 1));
                number
            }
        };
        let id = RouteId(self.next_route);
        self.next_route += 1;
        self.routes.insert(id, Route { address: address.to_vec(), number, queue: VecDeque::new() });
        Ok(id)
    }

    /// Ends a route. Queued and in-flight sends fail. Reads complete on their own, since the network writes to their frames until
    /// then.
    pub(super) fn disconnect(&mut self, id: RouteId, fault: &Fault, events: &mut Events) {
        let Some(route) = self.routes.remove(&id) else { return };
        self.waiting.remove(&id);
        for job in route.queue {
            events.take(job, fault);
        }
        for operation in &mut self.operations {
            if let Operation::Send { route, done, .. } = operation
                && *route == id
            {
                events.sent.extend(done.take().map(|done| (done, Err(fault.clone()))));
            }
        }
        if let Some((number, routes)) = self.addresses.get_mut(&route.address) {
            *routes -= 1;
            if *routes == 0 && !self.keeps_addresses {
                let number = *number;
                self.addresses.remove(&route.address);
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.remove(number);
                }
            }
        }
    }

    pub(super) fn take(&mut self, id: RouteId, job: Job, now: Duration, events: &mut Events) {
        let Some(route) = self.routes.get(&id) else {
            events.take(job, &ended());
            return;
        };
        if route.queue.len() >= QUEUE_MAX {
            let full =
                Fault::new(Errno::EAGAIN, format!("the queue of one peer is full ({QUEUE_MAX} messages)"));
            events.take(job, &full);
            // The connection must end, since an export or a counted message is lost.
            events.failed.push((id, full.to_string()));
            return;
        }
        let left = if route.queue.is_empty() { self.post(id, job, now, events) } else { Ok(Some(job)) };
        match left {
            Ok(None) => {}
            Ok(Some(job)) => {
                if let Some(route) = self.routes.get_mut(&id) {
                    route.queue.push_back(job);
                    self.waiting.insert(id);
                }
            }
            Err(why) => events.failed.push((id, why)),
        }
    }

    /// Fails the queued operations of a route.
    pub(super) fn drop_waiting(&mut self, id: RouteId, fault: &Fault, events: &mut Events) {
        self.waiting.remove(&id);
        let queue = self.routes.get_mut(&id).map(|route| std::mem::take(&mut route.queue));
        queue.into_iter().flatten().for_each(|job| events.take(job, fault));
    }

    /// Posts an operation, or returns it if it must wait.
    fn post(
        &mut self,
        id: RouteId,
        mut job: Job,
        now: Duration,
        events: &mut Events,
    ) -> Result<Option<Job>, String> {
        let (Some(endpoint), Some(route)) = (self.endpoint.as_mut(), self.routes.get(&id)) else {
            events.take(job, &ended());
            return Ok(None);
        };
        let idle = match job {
            Job::Send { .. } => &mut self.idle_sends,
            Job::Read { .. } => &mut self.idle_reads,
        };
        let Some(operation) = idle.pop() else { return Ok(Some(job)) };
        let posted = match &mut job {
            Job::Send { packet, .. } => {
                self.buffers.write(operation, packet);
                let buffer = (self.buffers.start(operation), packet.len());
                // SAFETY: the slot lies in the slab, and is not used otherwise until the operation has ended.
                unsafe { endpoint.send(operation, buffer, route.number) }
            }
            Job::Read { frame, length, from, .. } => {
                let buffer = (NonNull::from(&mut frame[..]).cast::<u8>(), *length as usize);
                // SAFETY: a frame of the slab, long enough, and kept unused until the operation has ended.
                unsafe { endpoint.read(operation, buffer, route.number, *from) }
            }
        };
        if let Ok(Posted::Taken) = posted {
            self.operations[operation] = match job {
                Job::Send { done, .. } => Operation::Send { route: id, done, since: now },
                Job::Read { frame, filled, .. } => Operation::Read { route: id, frame, filled, since: now },
            };
            return Ok(None);
        }
        idle.push(operation);
        if let Err(why) = posted {
            events.take(job, &broken(&why));
            return Err(why);
        }
        Ok(Some(job))
    }

    fn receive(&mut self) -> Result<(), String> {
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        while let Some(operation) = self.unposted.pop() {
            // SAFETY: the slot lies in the slab, is that long, and is not used otherwise until the operation has ended.
            let posted = unsafe { endpoint.receive(operation, self.buffers.start(operation), PACKET_MAX) };
            match posted? {
                Posted::Taken => self.operations[operation] = Operation::Receive,
                Posted::Later => {
                    self.unposted.push(operation);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Drives the library, handles completions, and posts queued operations. True if there were no completions.
    pub(super) fn progress(&mut self, now: Duration, events: &mut Events) -> bool {
        let Some(endpoint) = &mut self.endpoint else { return true };
        let mut found = std::mem::take(&mut self.found);
        let outcome = endpoint.completions(&mut found);
        let quiet = found.is_empty();
        for completion in found.drain(..) {
            self.ended(completion, events);
        }
        self.found = found;
        if let Err(why) = outcome.and_then(|()| self.receive()) {
            events.broken = Some(why);
        }
        self.post_waiting(now, events);
        quiet
    }

    fn ended(&mut self, Completion { operation, result }: Completion, events: &mut Events) {
        let Some(operation) = operation else { return self.lost(result.err(), events) };
        match std::mem::replace(&mut self.operations[operation], Operation::Idle) {
            Operation::Idle => log::debug!("libfabric reported the end of operation {operation} twice"),
            Operation::Receive => {
                self.unposted.push(operation);
                match result {
                    Ok(length) => events.packets.push(self.buffers.read(operation, length)),
                    Err(why) => log::debug!("libfabric could not receive: {why}"),
                }
            }
            Operation::Send { route, done, .. } => {
                self.idle_sends.push(operation);
                let result = result.map(drop).map_err(|why| events.fail(route, why));
                events.sent.extend(done.map(|done| (done, result)));
            }
            Operation::Read { route, frame, filled, .. } => {
                self.idle_reads.push(operation);
                let result = result.map(drop).map_err(|why| events.fail(route, why));
                events.filled.push((filled, frame, result));
            }
        }
    }

    /// Handles a failure without a known operation. The provider within a host reports so the failed reads of a dead peer, which
    /// it executes synchronously: no read in flight writes to its frame any more.
    fn lost(&mut self, why: Option<String>, events: &mut Events) {
        let why = why.unwrap_or_default();
        log::warn!("an unknown operation of libfabric failed: {why}");
        let reads = if self.keeps_addresses { RECEIVES + SENDS..OPERATIONS } else { 0..0 };
        for operation in reads {
            if matches!(self.operations[operation], Operation::Read { .. }) {
                self.ended(Completion { operation: Some(operation), result: Err(why.clone()) }, events);
            }
        }
    }

    fn post_waiting(&mut self, now: Duration, events: &mut Events) {
        for id in std::mem::take(&mut self.waiting) {
            while let Some(job) = self.routes.get_mut(&id).and_then(|route| route.queue.pop_front()) {
                match self.post(id, job, now, events) {
                    Ok(None) => events.posted.push(id),
                    Ok(Some(job)) => {
                        if let Some(route) = self.routes.get_mut(&id) {
                            route.queue.push_front(job);
                        }
                        self.waiting.insert(id);
                        break;
                    }
                    Err(why) => {
                        events.failed.push((id, why));
                        break;
                    }
                }
            }
        }
    }

    /// True if an operation waits to be posted.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.unposted.is_empty()
    }

    /// True if an operation is queued or in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.has_waiting() || self.idle_sends.len() < SENDS || self.idle_reads.len() < READS
    }

    /// True if an operation is queued or in flight on this route.
    pub(super) fn is_route_busy(&self, id: RouteId) -> bool {
        let is_of = |operation: &Operation| match operation {
            Operation::Send { route, .. } | Operation::Read { route, .. } => *route == id,
            Operation::Idle | Operation::Receive => false,
        };
        self.waiting.contains(&id) || self.operations[RECEIVES..].iter().any(is_of)
    }

    /// Routes with an operation in flight since `then` or earlier.
    pub(super) fn in_flight(&self, then: Duration) -> BTreeSet<RouteId> {
        let of = self.operations[RECEIVES..].iter().filter_map(|operation| match operation {
            Operation::Send { route, since, .. } | Operation::Read { route, since, .. } if *since <= then => {
                Some(*route)
            }
            Operation::Send { .. } | Operation::Read { .. } | Operation::Idle | Operation::Receive => None,
        });
        of.collect()
    }

    /// Leaks the endpoint, its buffers and the operations in flight.
    #[cfg(test)]
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.endpoint.take());
        self.buffers.abandon();
        let in_flight =
            self.operations.drain(..).filter(|operation| matches!(operation, Operation::Read { .. }));
        in_flight.for_each(std::mem::forget);
        self.operations.extend((0..OPERATIONS).map(|_| Operation::Idle));
    }

    /// Closes the endpoint. This ends all operations, and writes to their memory.
    pub(super) fn close(&mut self, fault: &Fault, events: &mut Events) {
        drop(self.endpoint.take());
        for operation in &mut self.operations {
            match std::mem::replace(operation, Operation::Idle) {
                Operation::Idle | Operation::Receive => {}
                Operation::Send { done, .. } => {
                    events.sent.extend(done.map(|done| (done, Err(fault.clone()))));
                }
                Operation::Read { frame, filled, .. } => {
                    events.filled.push((filled, frame, Err(fault.clone())));
                }
            }
        }
        for (_, route) in std::mem::take(&mut self.routes) {
            for job in route.queue {
                events.take(job, fault);
            }
        }
        (self.idle_sends, self.idle_reads) = ((RECEIVES..RECEIVES + SENDS).collect(), Vec::new());
        self.idle_reads.extend(RECEIVES + SENDS..OPERATIONS);
        self.waiting.clear();
        self.unposted.clear();
    }
}
