//! Remote procedure calls over any fabric.
//!
//! One incarnation of an agent executes a request at most once, however often the caller sends it: calls are numbered (see
//! [`tameike_core::wire::call`]), and the server remembers the last call of each slot. The caller resends a request when its peer
//! reconnects, and at growing intervals while no reply arrives. It waits without limit for a peer that is alive. If the peer has
//! failed, or was silent for the peer time limit, its calls return `EHOSTDOWN`; the caller cannot know whether the peer executed
//! them.
//!
//! A request to a home goes to the home's primary under the caller's home map, and names the epoch of the map. A server with another
//! epoch refuses the request without executing it, and returns its map. The older of the two maps is replaced, and the caller chooses the
//! node again.
//!
//! A home with replicas moves to another node if its primary fails. Calls to it wait for the map that says so, and are repeated at the new
//! primary. Those that change something have a number, by which the new primary recognizes a change that the failed one has replicated.
//!
//! The server fetches request payloads beyond [`Fabric::inline_max`] under a grant, and puts the payload of a reply into the
//! caller's frame if the request names one. If the caller can read the server's device ([`Fabric::device_of`]), the reply may
//! carry the location of the payload instead.

mod calls;
mod failover;
mod numbers;
mod serving;
mod sessions;

#[cfg(test)]
mod tests;

use super::{
    Answer, CallFuture, Destination, Fabric, Incoming, Lane, PeerEvent, Receiver, RequestContext, Rpc,
    Service,
};
use crate::times::PeerTimes;
use calls::{Call, Calls};
use event_listener::Event;
use failover::Patience;
pub use failover::REFUSED_TIME;
use futures_util::future::{Either, ready, select};
use numbers::{Numbered, Numbers};
use serving::Serving;
use sessions::{Begin, Sessions};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tameike_core::wire::admin::AdminRequest;
use tameike_core::wire::call::{
    CallId, CallNumber, Carriage, ExtentLocation, NumberedCall, ReplyHeader, RequestHeader, Scope,
};
use tameike_core::wire::codec::{decode, decode_first};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, HomeMap, NodeId, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::runtime::{Runtime, promise};
use tameike_io::slab::{Frame, Payload, Pool};

struct Inner {
    fabric: Arc<dyn Fabric>,
    runtime: Runtime,
    frames: Pool,
    attached: OnceLock<Attached>,
    calls: Calls,
    numbers: Arc<Numbers>,
    sessions: Sessions,
    /// Notified when the home map has changed.
    new_map: Event,
    /// Whether the programs of this node are being ended.
    is_ending: AtomicBool,
    /// The agent has stopped.
    is_closed: AtomicBool,
}

/// What an agent has once it knows the nodes of its job.
struct Attached {
    service: Arc<dyn Service>,
    cluster: Arc<Cluster>,
}

/// An agent's end of remote procedure calls: sends requests, and passes incoming ones to the agent's service.
pub struct RpcNode(Arc<Inner>);

impl RpcNode {
    /// Attaches to `fabric`. `frames` receive payloads that are fetched by grant.
    pub fn new(fabric: Arc<dyn Fabric>, runtime: Runtime, frames: Pool) -> Self {
        let inner = Arc::new(Inner {
            calls: Calls::new(runtime.random_u64(), PeerTimes::new(fabric.peer_limit())),
            fabric,
            runtime,
            frames,
            attached: OnceLock::new(),
            numbers: Arc::default(),
            sessions: Sessions::default(),
            new_map: Event::new(),
            is_ending: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        // Weak, because the fabric owns the receiver and `Inner` owns the fabric.
        inner.fabric.attach(Arc::new(Inbound(Arc::downgrade(&inner))));
        Self(inner)
    }

    /// Sets the service for all requests, local ones included, and the nodes of the job. Called once; earlier requests fail with
    /// `EAGAIN`.
    pub fn attach(&self, service: Arc<dyn Service>, cluster: Arc<Cluster>) {
        let inner = Arc::downgrade(&self.0);
        cluster.watch(move || {
            if let Some(inner) = inner.upgrade() {
                inner.map_changed();
            }
        });
        if self.0.attached.set(Attached { service, cluster }).is_err() {
            log::error!("ignored a second service for this agent");
        }
    }

    /// The programs of this node are being ended. If it is excluded, their calls do not wait any more until it reaches the other nodes.
    pub fn end_waits(&self) {
        self.0.end_waits();
    }

    /// The agent has stopped: calls fail from now on, and so do those that wait for a primary. A thread that runs timers may wait for one.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Rpc for RpcNode {
    fn local(&self) -> NodeId {
        self.0.fabric.local()
    }

    fn device_of(&self, node: NodeId) -> Option<Arc<HostDevice>> {
        self.0.fabric.device_of(node)
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> CallFuture {
        let inner = self.0.clone();
        let served = inner.route(to).and_then(|(node, scope)| {
            let context = RequestContext { from: node, home: scope.home(), epoch: scope.epoch(), call: None };
            let attached = inner.attached()?;
            let is_simple = node == self.local()
                && (!attached.cluster.is_replicated() || scope == Scope::Node)
                && attached.service.admit(&context, &request).is_none();
            Ok(is_simple.then_some(context))
        });
        match served {
            Ok(Some(context)) => match inner.serve(context, request, payload, into) {
                Ok(served) => served,
                Err(fault) => Box::pin(ready(Err(fault))),
            },
            Ok(None) => Box::pin(inner.call(to, request, payload, into)),
            Err(fault) => Box::pin(ready(Err(fault))),
        }
    }
}

fn unless_fault(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Fault(fault) => Err(fault),
        reply => Ok(reply),
    }
}

#[derive(Clone)]
struct Attempt {
    request: Arc<Request>,
    payload: Option<Payload>,
    scope: Scope,
    number: Option<CallNumber>,
    /// The reply may carry a location, since the caller can read the peer's device.
    accepts_location: bool,
}

/// The peer has answered, perhaps with a fault or with something that is no answer, or it could not be reached.
type Outcome = Result<Result<(Reply, ReplyPayload)>, Unreached>;

/// The peer has failed, is unreachable, or serves the home no more.
struct Unreached {
    fault: Fault,
    /// The frame of the caller.
    frame: Option<Frame>,
}

enum ReplyPayload {
    /// With the frame of the caller, if the bytes are not in it.
    Received(Option<Payload>, Option<Frame>),
    /// On the peer's device; the frame will receive them.
    OnDevice(ExtentLocation, Frame),
}

/// Ends the call and revokes its grants when the caller drops its future.
struct Ticket {
    id: CallId,
    to: NodeId,
    inner: Arc<Inner>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(call) = self.inner.calls.remove(self.to, self.id) {
            self.inner.revoke(&call);
        }
    }
}

struct Inbound(Weak<Inner>);

impl Receiver for Inbound {
    fn message(&self, incoming: Incoming) {
        let Some(inner) = self.0.upgrade() else { return };
        match incoming.lane {
            Lane::Request => inner.request(incoming),
            Lane::Reply => inner.reply(incoming),
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let Some(inner) = self.0.upgrade() else { return };
        match event {
            PeerEvent::Up => inner.calls.waiting_for(peer).into_iter().for_each(|id| inner.resend(peer, id)),
            PeerEvent::Failed => inner.fail_calls(peer, "has failed: its agent exited"),
            PeerEvent::Unreachable => {
                inner.fail_calls(peer, "is unreachable: it was silent for the peer time limit");
            }
        }
        if let Some(attached) = inner.attached.get() {
            attached.service.peer(peer, event);
        }
    }

    fn is_expecting(&self, peer: NodeId) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        inner.calls.any_to(peer) || inner.sessions.is_serving(peer)
    }
}

impl Inner {
    fn attached(&self) -> Result<&Attached> {
        self.attached.get().ok_or_else(|| Fault::new(Errno::EAGAIN, "the agent is still starting"))
    }

    /// Chooses the node of a destination.
    fn route(&self, to: Destination) -> Result<(NodeId, Scope)> {
        match to {
            Destination::Node(node) => Ok((node, Scope::Node)),
            Destination::Home(home) => {
                let (node, epoch) = self.attached()?.cluster.route(home);
                Ok((node, Scope::Home(home, epoch)))
            }
            Destination::Primary(node, chosen) => {
                let map = self.attached()?.cluster.map();
                let scope = map.keeps_primaries_of(chosen).then_some(Scope::Homes(map.epoch));
                Ok((node, scope.ok_or(Errno::EREMCHG)?))
            }
            Destination::Backup(node, epoch) if self.attached()?.cluster.epoch() == epoch => {
                Ok((node, Scope::Homes(epoch)))
            }
            Destination::Backup(..) => Err(Errno::EREMCHG.into()),
        }
    }

    /// The number of a call that may be repeated at another primary.
    fn number(&self, to: Destination, request: &Request) -> Option<Numbered> {
        let is_replicated = || self.attached().is_ok_and(|attached| attached.cluster.is_replicated());
        (to.home().is_some() && !request.is_read_only() && is_replicated()).then(|| self.numbers.next())
    }

    /// The client side of a call.
    ///
    /// - If the bytes at the location that the peer returned cannot be read or have changed, the call is repeated without permission for a
    ///   location: then the peer reads its device itself.
    /// - If the peer has another home map, the call is repeated after the maps were exchanged.
    /// - If the peer of a home with replicas cannot be reached, the call is repeated at the next primary.
    async fn call(
        self: Arc<Self>,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        mut into: Option<Frame>,
    ) -> Result<Answer> {
        let number = self.number(to, &request);
        let mut accepts_location = into.is_some() && request.expects_payload();
        let request = Arc::new(request);
        let mut patience = Patience::default();
        loop {
            let new_map = self.new_map.listen();
            self.check_open()?;
            let (node, scope) = self.route(to)?;
            let number = number.as_ref().map(Numbered::current);
            if node == self.fabric.local() {
                match self.serve_own(scope, number, &request, &payload, &mut into).await {
                    Err(fault) if fault.errno == Errno::EREMCHG && to.home().is_some() => {
                        self.wait_for_map(scope, new_map).await;
                        continue;
                    }
                    served => return served,
                }
            }
            let device = if accepts_location { self.fabric.device_of(node) } else { None };
            let attempt = Attempt {
                request: request.clone(),
                payload: payload.clone(),
                scope,
                number,
                accepts_location: device.is_some(),
            };
            let answered = match self.clone().attempt(node, attempt, into.take()).await {
                Ok(answered) => answered?,
                Err(Unreached { fault, frame }) => {
                    into = frame;
                    self.wait_for_primary((node, scope), &request, new_map, &mut patience, fault).await?;
                    continue;
                }
            };
            match (answered, device) {
                ((Reply::OtherMap(other), ReplyPayload::Received(_, frame)), _) => {
                    into = frame;
                    if self.is_current(scope) && self.attached()?.cluster.epoch() == other.epoch {
                        self.wait_for_map(scope, new_map).await;
                    } else {
                        self.clone().exchange_maps(node, other).await?;
                    }
                }
                ((reply, ReplyPayload::Received(payload, _)), _) => return Ok(Answer { reply, payload }),
                ((reply, ReplyPayload::OnDevice(place, frame)), Some(device)) => {
                    match device.read(&place, frame) {
                        Ok(payload) => return Ok(Answer { reply, payload: Some(payload) }),
                        Err(frame) => into = Some(frame),
                    }
                    accepts_location = false;
                }
                ((_, ReplyPayload::OnDevice(..)), None) => {
                    let why = format!("{node} returned a location on its device where bytes were required");
                    return Err(Fault::new(Errno::EPROTO, why));
                }
            }
        }
    }

    /// Serves a call of this agent itself, when it serves the homes.
    async fn serve_own(
        &self,
        scope: Scope,
        number: Option<CallNumber>,
        request: &Request,
        payload: &Option<Payload>,
        into: &mut Option<Frame>,
    ) -> Result<Answer> {
        let from = self.fabric.local();
        let call = number.map(|number| NumberedCall { node: from, incarnation: self.calls.epoch(), number });
        let context = RequestContext { from, home: scope.home(), epoch: scope.epoch(), call };
        if let Some(admitted) = self.attached()?.service.admit(&context, request) {
            admitted.await?;
        }
        self.serve(context, request.clone(), payload.clone(), into.take())?.await
    }

    /// Passes a call of this agent to its service. Runs synchronously up to the first wait.
    fn serve(
        &self,
        context: RequestContext,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> Result<CallFuture> {
        let served = self.attached()?.service.serve(context, request, payload, into.into());
        Ok(Box::pin(async move {
            let (reply, carried) = served.await;
            Ok(Answer { reply: unless_fault(reply)?, payload: carried.payload() })
        }))
    }

    /// Replaces the older one of two maps: that of this agent, and that of a node which has refused a request.
    async fn exchange_maps(self: Arc<Self>, node: NodeId, other: HomeMap) -> Result<()> {
        let cluster = &self.attached()?.cluster;
        let own = cluster.map();
        if !cluster.fits(&other) {
            return Err(Fault::new(Errno::EPROTO, format!("{node} has the home map of another job")));
        }
        if other.epoch < own.epoch {
            let request = Arc::new(Request::Admin(AdminRequest::Map((*own).clone())));
            let scope = Scope::Node;
            let attempt = Attempt { request, payload: None, scope, number: None, accepts_location: false };
            return match self.clone().attempt(node, attempt, None).await {
                Ok(answered) => answered.map(drop),
                // The call finds out.
                Err(_) => Ok(()),
            };
        }
        // False if another call has brought it, or a newer one.
        cluster.replace_map(other);
        Ok(())
    }

    /// Performs one call, including its resends.
    async fn attempt(self: Arc<Self>, to: NodeId, attempt: Attempt, into: Option<Frame>) -> Outcome {
        let Attempt { request, payload, scope, number, accepts_location } = attempt;
        let inline_max = self.fabric.inline_max();
        let into = match into {
            // The peer can send a large payload only into a frame.
            None if request.expects_payload() && inline_max < tameike_core::limits::UNIT_SIZE => {
                Some(self.frames.take().await)
            }
            into => into,
        };
        let target = into.map(|frame| self.fabric.grant_write(frame));
        let large = payload.as_ref().filter(|payload| payload.len() > inline_max);
        let source = large.map(|payload| (self.fabric.grant_read(payload.clone()), payload.len() as u32));
        let payload = payload.filter(|_| source.is_none());
        let (resolver, promise) = promise();
        let attempt = Attempt { request, payload, scope, number, accepts_location };
        let call = Call::new(attempt, source, target, resolver);
        let id = match self.calls.insert(to, call) {
            Ok(id) => id,
            Err(call) => {
                self.revoke(&call);
                let problem = format!("too many calls to {to} are pending");
                return Ok(Err(Fault::new(Errno::EAGAIN, problem)));
            }
        };
        let ticket = Ticket { id, to, inner: self.clone() };
        if self.calls.start_ticking() {
            let interval = self.calls.tick_interval();
            self.runtime.spawn(tick(Arc::downgrade(&self), self.runtime.clone(), interval));
        }
        if self.is_moved(to, scope) {
            self.end_moved(to, id);
            return promise.await;
        }
        // The call may end while its message waits for a connection.
        match select(pin!(self.transmit(to, ticket.id)), promise).await {
            Either::Left((sent, promise)) => {
                if let Err(fault) = sent {
                    self.finish(to, id, Err(fault));
                }
                promise.await
            }
            Either::Right((outcome, _)) => outcome,
        }
    }

    /// Sends a pending call. Errors are final, except that of a broken connection, which leads to a resend.
    async fn transmit(&self, to: NodeId, id: CallId) -> Result<()> {
        let Some((body, payload)) = self.calls.message(to, id) else { return Ok(()) };
        let sent = self.fabric.send(to, Lane::Request, body?, payload).await;
        self.calls.sent(to, id, sent.is_ok());
        match sent {
            Err(fault) if ![Errno::ECONNRESET, Errno::ETIMEDOUT].contains(&fault.errno) => Err(fault),
            Err(_) | Ok(()) => Ok(()),
        }
    }

    fn resend(self: &Arc<Self>, to: NodeId, id: CallId) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            if let Err(fault) = inner.transmit(to, id).await {
                inner.finish(to, id, Err(fault));
            }
        });
    }

    fn fail_calls(&self, peer: NodeId, why: &str) {
        let fault = Fault::new(Errno::EHOSTDOWN, format!("{peer} {why}"));
        for id in self.calls.all_to(peer) {
            self.finish(peer, id, Err(fault.clone()));
        }
    }

    fn reply(&self, incoming: Incoming) {
        let decoded = decode_first::<ReplyHeader>(&incoming.body);
        let (header, rest) = match decoded {
            Ok(decoded) => decoded,
            Err(fault) => return log::error!("{} sent a damaged reply: {fault}", incoming.from),
        };
        let reply = decode(rest).map_err(|fault| fault.context(format!("the reply of {}", incoming.from)));
        let result = reply.map(|reply| (reply, header.carriage, incoming.payload));
        self.finish(incoming.from, header.id, Ok(result));
    }

    /// Ends a pending call: revokes its grants and resolves it. The outer error means that the peer could not be reached.
    fn finish(&self, to: NodeId, id: CallId, result: Result<Result<(Reply, Carriage, Option<Payload>)>>) {
        let Some(call) = self.calls.remove(to, id) else { return };
        let frame = self.revoke(&call);
        let answered = match result {
            Ok(answered) => answered,
            Err(fault) => return call.resolver.resolve(Err(Unreached { fault, frame })),
        };
        let answered = answered.and_then(|(reply, carriage, payload)| {
            let payload = match (carriage, frame) {
                (Carriage::Beside, frame) => ReplyPayload::Received(payload, frame),
                (Carriage::Put(length), Some(frame)) if length as usize <= frame.len() => {
                    ReplyPayload::Received(Some(Payload::new(Arc::new(frame), 0..length)), None)
                }
                (Carriage::Placed(place), Some(frame)) => ReplyPayload::OnDevice(place, frame),
                (Carriage::Put(_) | Carriage::Placed(_), _) => {
                    return Err(Fault::io(format!("the reply of {to} lacks its payload")));
                }
            };
            Ok((unless_fault(reply)?, payload))
        });
        call.resolver.resolve(Ok(answered));
    }

    fn revoke(&self, call: &Call) -> Option<Frame> {
        call.source.and_then(|(grant, _)| self.fabric.revoke(grant));
        call.target.and_then(|grant| self.fabric.revoke(grant))
    }

    fn request(self: &Arc<Self>, incoming: Incoming) {
        let Incoming { from, body, payload, .. } = incoming;
        let (header, rest) = match decode_first::<RequestHeader>(&body) {
            Ok(decoded) => decoded,
            Err(fault) => return log::error!("{from} sent a damaged request: {fault}"),
        };
        let is_refused = match self.sessions.begin(from, header.id) {
            Begin::Ignore => return,
            Begin::Repeat(body) => {
                let send = self.fabric.send(from, Lane::Reply, body, None);
                // If this is lost, the caller resends its request.
                return self.runtime.spawn(async move { drop(send.await) });
            }
            Begin::Execute => false,
            Begin::Refuse => true,
        };
        let task = Serving::new(self.clone(), from, header);
        if is_refused {
            return self.runtime.spawn(task.refuse_map());
        }
        match decode::<Request>(rest) {
            Ok(request) => self.runtime.spawn(task.serve(request, payload)),
            Err(fault) => self.runtime.spawn(task.refuse(fault)),
        }
    }
}

/// Resends calls and probes peers at this interval until no call is pending. So no timer runs while none is.
async fn tick(inner: Weak<Inner>, runtime: Runtime, interval: Duration) {
    loop {
        runtime.sleep(interval).await;
        let Some(inner) = inner.upgrade() else { return };
        let Some(round) = inner.calls.tick() else { return };
        round.probe.iter().for_each(|peer| inner.fabric.probe(*peer));
        round.resend.into_iter().for_each(|(to, id)| inner.resend(to, id));
    }
}
