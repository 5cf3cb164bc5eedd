//! Server side of a call: fetch the payload, run the service, reply.

use super::Inner;
use crate::{Carried, GrantId, Lane, RequestContext, Target};
use std::sync::Arc;
use tameike_core::wire::call::{CallId, Carriage, NumberedCall, ReplyHeader, RequestHeader};
use tameike_core::wire::codec::encode;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::slab::Payload;

/// A request in execution. Its drop without a reply (the task panicked) replies with a fault.
pub(super) struct Serving {
    inner: Arc<Inner>,
    from: NodeId,
    header: RequestHeader,
    answered: bool,
}

impl Serving {
    pub(super) fn new(inner: Arc<Inner>, from: NodeId, header: RequestHeader) -> Self {
        Self { inner, from, header, answered: false }
    }

    pub(super) async fn serve(self, request: Request, inline: Option<Payload>) {
        let payload = match self.header.source {
            None => inline,
            Some((grant, length)) => match self.fetch(GrantId(grant), length).await {
                Ok(payload) => Some(payload),
                Err(fault) if fault.errno == Errno::EINVAL => return self.refuse(fault).await,
                Err(fault) => return self.forget(&fault),
            },
        };
        let read_only = request.is_read_only();
        let attached = match self.inner.attached() {
            Ok(attached) => attached,
            Err(fault) => return self.refuse(fault).await,
        };
        let context = self.context();
        let is_other_map =
            || self.header.scope.epoch().is_some_and(|epoch| epoch != attached.cluster.epoch());
        if is_other_map() {
            return self.refuse_map().await;
        }
        if let Some(admitted) = attached.service.admit(&context, &request) {
            // The home may have moved, or the caller's map may be an old one by now.
            let admitted = admitted.await;
            if admitted.is_err() || is_other_map() {
                return self.refuse_map().await;
            }
        }
        let target = if self.header.places { Target::AnyOrLocation } else { Target::Any };
        let (reply, carried) = attached.service.serve(context, request, payload, target).await;
        match reply {
            Reply::Fault(fault) if fault.errno == Errno::EREMCHG && self.header.scope.epoch().is_some() => {
                self.refuse_map().await;
            }
            reply => self.answer(read_only, reply, carried).await,
        }
    }

    fn context(&self) -> RequestContext {
        let (from, header) = (self.from, &self.header);
        let call =
            header.number.map(|number| NumberedCall { node: from, incarnation: header.id.epoch, number });
        RequestContext { from, home: header.scope.home(), epoch: header.scope.epoch(), call }
    }

    async fn fetch(&self, grant: GrantId, length: u32) -> Result<Payload> {
        let frame = self.inner.frames.take().await;
        let (frame, result) = self.inner.fabric.get(self.from, grant, frame, length).await;
        result.map(|()| Payload::new(Arc::new(frame), 0..length))
    }

    /// Gives the request up because its payload could not be fetched. The caller may send it again.
    fn forget(mut self, fault: &Fault) {
        log::info!("cannot fetch the payload of a request of {}: {fault}", self.from);
        self.answered = true;
        self.inner.sessions.finish(self.from, self.header.id, None);
    }

    pub(super) async fn refuse(self, fault: Fault) {
        self.answer(false, Reply::Fault(fault), Carried::Nothing).await;
    }

    /// Refuses the request of a caller with another home map, and returns this agent's.
    pub(super) async fn refuse_map(mut self) {
        let own = match self.inner.attached() {
            Ok(attached) => attached.cluster.map(),
            Err(fault) => return self.refuse(fault).await,
        };
        self.answered = true;
        self.inner.sessions.refuse(self.from, self.header.id);
        let header = ReplyHeader { id: self.header.id, carriage: Carriage::Beside };
        let body = encode(&(header, Reply::OtherMap((*own).clone()))).unwrap_or_default();
        if let Err(fault) = self.inner.fabric.send(self.from, Lane::Reply, body, None).await {
            log::info!("cannot send a reply to {}: {fault}", self.from); // the caller resends its request
        }
    }

    async fn answer(mut self, read_only: bool, reply: Reply, carried: Carried) {
        self.answered = true;
        let (inner, from, id) = (self.inner.clone(), self.from, self.header.id);
        let (carriage, target, payload) = match (carried, self.header.target) {
            (Carried::Nothing, _) => (Carriage::Beside, None, None),
            (Carried::Payload(payload), None) => (Carriage::Beside, None, Some(payload)),
            (Carried::Payload(payload), target) => {
                (Carriage::Put(payload.len() as u32), target, Some(payload))
            }
            (Carried::Location(place), _) => (Carriage::Placed(place), None, None),
        };
        let body = encode(&(ReplyHeader { id, carriage }, &reply));
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
            log::info!("cannot send a reply to {from}: {fault}"); // the caller resends its request
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
    encode(&(ReplyHeader { id, carriage: Carriage::Beside }, Reply::Fault(fault))).unwrap_or_default()
}
