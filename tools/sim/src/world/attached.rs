//! The service that the network calls: it forwards requests to the node, and breaks the reference cycle between both.

use super::Canary;
use super::holders::unchecked;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_agent::Node;
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::unit::{SPACE_ATTEMPTS_MAX, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, NodeId, Result};
use tameike_fabric::{Carried, PeerEvent, RequestContext, Service, Target};
use tameike_io::{Payload, Pool};

/// Forwards requests of the network to a node.
pub(super) struct Attached {
    node: Mutex<Option<Arc<Node>>>,
    canary: Option<Canary>,
    /// Frames for wrong replies of an injected bug.
    frames: Pool,
}

impl Attached {
    /// Creates a service without a node, which refuses requests with EAGAIN.
    pub fn new(canary: Option<Canary>, frames: Pool) -> Self {
        Self { node: Mutex::default(), canary, frames }
    }

    /// Sets the node that serves all later requests.
    pub fn set(&self, node: Arc<Node>) {
        *self.node.lock() = Some(node);
    }

    /// Removes the node.
    pub fn clear(&self) {
        let node = self.node.lock().take();
        drop(node);
    }
}

impl Service for Attached {
    fn admit(&self, context: &RequestContext, request: &Request) -> Option<BoxFuture<'static, Result<()>>> {
        let node = self.node.lock().clone();
        node?.admit(context, request)
    }

    fn serve(
        &self,
        context: RequestContext,
        request: Request,
        payload: Option<Payload>,
        target: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let node = self.node.lock().clone();
        let call = context.call.filter(|_| self.canary != Some(Canary::ForgottenCall));
        let context = RequestContext { call, ..context };
        if let (Some(Canary::UncheckedSum), Some(node), Request::Client(request)) =
            (self.canary, &node, &request)
            && let Some(bytes) = unchecked(node, &self.frames, request)
        {
            let answer = (Reply::Client(ClientReply::Read), Carried::Payload(bytes));
            return Box::pin(ready(answer));
        }
        match node {
            Some(node) if self.canary == Some(Canary::WaitingFrame) => {
                Box::pin(serve_until_there_is_room(node, context, request, payload, target))
            }
            Some(node) => node.serve(context, request, payload, target),
            None => Box::pin(ready((Reply::Fault(Errno::EAGAIN.into()), Carried::Nothing))),
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let node = self.node.lock().clone();
        let is_hidden = self.canary == Some(Canary::UnreportedFailure) && event == PeerEvent::Failed;
        if let Some(node) = node {
            node.peer(peer, if is_hidden { PeerEvent::Unreachable } else { event });
        }
    }
}

/// The injected bug [`Canary::WaitingFrame`]: retries a write to a cached file, and keeps its frame while the node frees space.
async fn serve_until_there_is_room(
    node: Arc<Node>,
    context: RequestContext,
    request: Request,
    payload: Option<Payload>,
    target: Target,
) -> (Reply, Carried) {
    let Request::Unit(UnitRequest::Write { unit, .. }) = request else {
        return node.serve(context, request, payload, target).await;
    };
    let mut attempt = 0;
    loop {
        let (reply, carried) = node.serve(context, request.clone(), payload.clone(), Target::Any).await;
        let is_full = matches!(&reply, Reply::Fault(fault) if fault.errno == Errno::ENOSPC);
        if !is_full || !unit.inode.is_cached() || attempt == SPACE_ATTEMPTS_MAX {
            return (reply, carried);
        }
        let room = Request::Unit(UnitRequest::WaitForSpace { attempt });
        match node.serve(context, room, None, Target::Any).await {
            (Reply::Fault(fault), carried) => return (Reply::Fault(fault), carried),
            _ => attempt += 1,
        }
    }
}
