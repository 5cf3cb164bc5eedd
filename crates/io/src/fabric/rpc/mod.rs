//! Requests and replies over any fabric.
//!
//! A request is executed at most once by one life of an agent, however often it had to be sent: calls are
//! numbered (see [`tameike_core::wire::call`]), and the answerer remembers the last one of each number's slot.
//! It is sent again when its peer comes back after a broken connection, and now and then while no answer
//! comes. A peer that lives is waited for without limit; when it is dead, or silent for the peer time limit,
//! its calls end with `EHOSTDOWN`. What was executed by an agent that then died cannot be known here.
//!
//! Payloads beyond [`Fabric::inline_max`] are fetched by the answerer under a grant; the payload of a reply is
//! put into the caller's frame where it gave one.

mod calls;
mod sessions;

#[cfg(test)]
mod tests;

use super::{Answer, Fabric, GrantId, Incoming, Lane, PeerEvent, Receiver, Rpc, Service};
use crate::os::runtime::{Runtime, promise};
use crate::slab::{Frame, Payload, Pool};
use calls::{Call, Calls};
use futures_util::future::BoxFuture;
use sessions::{Begin, Sessions};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tameike_core::wire::call::{CallId, ReplyHeader, RequestHeader};
use tameike_core::wire::codec::{decode, decode_first, encode};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};

/// Time between two looks at calls that wait; there are none while no call waits.
const TICK: Duration = Duration::from_secs(1);

struct Inner {
    fabric: Arc<dyn Fabric>,
    runtime: Runtime,
    frames: Pool,
    service: OnceLock<Arc<dyn Service>>,
    calls: Calls,
    sessions: Sessions,
}

/// Asks other agents, and has this one's service answer them.
pub struct RpcNode(Arc<Inner>);

impl RpcNode {
    /// Attaches to `fabric`. `frames` are for payloads that are fetched by grant.
    pub fn new(fabric: Arc<dyn Fabric>, runtime: Runtime, frames: Pool) -> Self {
        let inner = Arc::new(Inner {
            calls: Calls::new(runtime.random_u64()),
            fabric,
            runtime,
            frames,
            service: OnceLock::new(),
            sessions: Sessions::default(),
        });
        // Weak: the fabric must not keep alive what keeps it alive.
        inner.fabric.attach(Arc::new(Inbound(Arc::downgrade(&inner))));
        Self(inner)
    }

    /// Says who serves requests, of this node too. Called once; what comes before is answered with `EAGAIN`.
    pub fn attach(&self, service: Arc<dyn Service>) {
        if self.0.service.set(service).is_err() {
            log::error!("a second service was attached to the agent, and is ignored");
        }
    }
}

impl Rpc for RpcNode {
    fn local(&self) -> NodeId {
        self.0.fabric.local()
    }

    fn call(
        &self,
        to: NodeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let inner = self.0.clone();
        if to != self.local() {
            return Box::pin(inner.call(to, request, payload, into));
        }
        let served = inner.service().map(|service| service.serve(to, request, payload, into));
        Box::pin(async move { answer(served?.await) })
    }
}

fn answer((reply, payload): (Reply, Option<Payload>)) -> Result<Answer> {
    match reply {
        Reply::Fault(fault) => Err(fault),
        reply => Ok(Answer { reply, payload }),
    }
}

/// A caller's hold on its call: dropped early, the call is forgotten.
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

/// What the fabric holds.
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
            PeerEvent::Dead => inner.fail_calls(peer, "is dead: its agent has ended"),
            PeerEvent::Unreachable => {
                inner.fail_calls(peer, "is unreachable: nothing was heard of it for the peer time limit");
            }
        }
        if let Some(service) = inner.service.get() {
            service.peer(peer, event);
        }
    }
}

impl Inner {
    fn service(&self) -> Result<&Arc<dyn Service>> {
        self.service.get().ok_or_else(|| Fault::new(Errno::EAGAIN, "the agent is still starting"))
    }

    /// The caller's side of a call.
    async fn call(
        self: Arc<Self>,
        to: NodeId,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> Result<Answer> {
        let inline_max = self.fabric.inline_max();
        let into = match into {
            // The peer cannot send a large payload but into a frame.
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
        let call = Call::new(request, payload, source, target, resolver);
        let id = self.calls.insert(to, call).map_err(|call| {
            self.revoke(&call);
            Fault::new(Errno::EAGAIN, format!("too many calls wait for {to}"))
        })?;
        let ticket = Ticket { id, to, inner: self.clone() };
        if self.calls.start_ticking() {
            self.runtime.spawn(tick(Arc::downgrade(&self), self.runtime.clone()));
        }
        self.transmit(to, ticket.id).await?;
        promise.await
    }

    /// Sends a waiting call; an error is final. A broken connection is none: the call is sent again later.
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

    /// A reply has come.
    fn reply(&self, incoming: Incoming) {
        let decoded = decode_first::<ReplyHeader>(&incoming.body);
        let (header, rest) = match decoded {
            Ok(decoded) => decoded,
            Err(fault) => return log::error!("{} sent a damaged reply: {fault}", incoming.from),
        };
        let reply = decode(rest).map_err(|fault| fault.context(format!("the reply of {}", incoming.from)));
        let result = reply.map(|reply| (reply, header.put, incoming.payload));
        self.finish(incoming.from, header.id, result);
    }

    /// Ends a call, if it still waits: takes its grants back and gives its result to the caller.
    fn finish(&self, to: NodeId, id: CallId, result: Result<(Reply, Option<u32>, Option<Payload>)>) {
        let Some(call) = self.calls.remove(to, id) else { return };
        let frame = self.revoke(&call);
        let result = result.and_then(|(reply, put, payload)| match (put, frame) {
            (None, _) => answer((reply, payload)),
            (Some(length), Some(frame)) if length as usize <= frame.len() => {
                answer((reply, Some(Payload::new(Arc::new(frame), 0..length))))
            }
            (Some(_), _) => Err(Fault::io(format!("{to} put the payload of its reply nowhere"))),
        });
        call.resolver.resolve(result);
    }

    fn revoke(&self, call: &Call) -> Option<Frame> {
        call.source.and_then(|(grant, _)| self.fabric.revoke(grant));
        call.target.and_then(|grant| self.fabric.revoke(grant))
    }

    /// A request has come.
    fn request(self: &Arc<Self>, incoming: Incoming) {
        let Incoming { from, body, payload, .. } = incoming;
        let (header, rest) = match decode_first::<RequestHeader>(&body) {
            Ok(decoded) => decoded,
            Err(fault) => return log::error!("{from} sent a damaged request: {fault}"),
        };
        match self.sessions.begin(from, header.id) {
            Begin::Ignore => return,
            Begin::Repeat(body) => {
                let send = self.fabric.send(from, Lane::Reply, body, None);
                // What is lost is asked for again.
                return self.runtime.spawn(async move { drop(send.await) });
            }
            Begin::Execute => {}
        }
        let task = Serving { inner: self.clone(), from, header, answered: false };
        match decode::<Request>(rest) {
            Ok(request) => self.runtime.spawn(task.serve(request, payload)),
            Err(fault) => self.runtime.spawn(task.refuse(fault)),
        }
    }
}

/// A request being served. Dropped without an answer (its task panicked), it answers with a fault.
struct Serving {
    inner: Arc<Inner>,
    from: NodeId,
    header: RequestHeader,
    answered: bool,
}

impl Serving {
    async fn serve(self, request: Request, inline: Option<Payload>) {
        let payload = match self.header.source {
            None => inline,
            Some((grant, length)) => match self.fetch(GrantId(grant), length).await {
                Ok(payload) => Some(payload),
                Err(fault) if fault.errno == Errno::EINVAL => return self.refuse(fault).await,
                Err(fault) => return self.forget(&fault),
            },
        };
        let read_only = request.is_read_only();
        match self.inner.service() {
            Ok(service) => {
                let (reply, payload) = service.serve(self.from, request, payload, None).await;
                self.answer(read_only, reply, payload).await;
            }
            Err(fault) => self.refuse(fault).await,
        }
    }

    async fn fetch(&self, grant: GrantId, length: u32) -> Result<Payload> {
        let frame = self.inner.frames.take().await;
        let (frame, result) = self.inner.fabric.get(self.from, grant, frame, length).await;
        result.map(|()| Payload::new(Arc::new(frame), 0..length))
    }

    /// The payload could not be had: the caller will send the request again, if it still wants it.
    fn forget(mut self, fault: &Fault) {
        log::info!("cannot fetch the payload of a request of {}: {fault}", self.from);
        self.answered = true;
        self.inner.sessions.finish(self.from, self.header.id, None);
    }

    async fn refuse(self, fault: Fault) {
        self.answer(false, Reply::Fault(fault), None).await;
    }

    async fn answer(mut self, read_only: bool, reply: Reply, payload: Option<Payload>) {
        self.answered = true;
        let (inner, from, id) = (self.inner.clone(), self.from, self.header.id);
        let target = payload.as_ref().and(self.header.target);
        let put = payload.as_ref().filter(|_| target.is_some()).map(|payload| payload.len() as u32);
        let body = encode(&(ReplyHeader { id, put }, &reply));
        let (body, payload) = match body {
            Ok(body) => (body, payload),
            Err(fault) => (fault_reply(id, fault.context("cannot answer")), None),
        };
        let remembered = match (read_only, &payload) {
            (true, _) => None,
            (false, None) => Some(body.clone()),
            (false, Some(_)) => Some(fault_reply(id, Fault::io("the payload of the reply was lost"))),
        };
        inner.sessions.finish(from, id, remembered);
        let mut sent = match (target, payload) {
            (Some(grant), Some(payload)) => inner.fabric.put(from, GrantId(grant), payload, body).await,
            (_, payload) => inner.fabric.send(from, Lane::Reply, body, payload).await,
        };
        if let Err(fault) = &sent
            && fault.errno == Errno::EINVAL
        {
            sent = inner.fabric.send(from, Lane::Reply, fault_reply(id, fault.clone()), None).await;
        }
        if let Err(fault) = sent {
            log::info!("cannot send a reply to {from}: {fault}"); // it is asked for again
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.answered {
            // It is the last attempt: on a runtime that takes no more tasks this one is dropped, too.
            let task = Self { inner: self.inner.clone(), answered: true, ..*self };
            self.inner.runtime.spawn(task.refuse(Fault::io("the agent failed to serve this request")));
        }
    }
}

fn fault_reply(id: CallId, fault: Fault) -> Vec<u8> {
    encode(&(ReplyHeader { id, put: None }, Reply::Fault(fault))).unwrap_or_default()
}

/// Looks after the calls that wait, until there are none.
async fn tick(inner: Weak<Inner>, runtime: Runtime) {
    loop {
        runtime.sleep(TICK).await;
        let Some(inner) = inner.upgrade() else { return };
        let Some(round) = inner.calls.tick() else { return };
        round.probe.iter().for_each(|peer| inner.fabric.probe(*peer));
        round.resend.into_iter().for_each(|(to, id)| inner.resend(to, id));
    }
}
