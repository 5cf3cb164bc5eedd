//! What stands between a node and the network: they would keep each other alive for good.

use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_agent::Node;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, NodeId};
use tameike_io::Payload;
use tameike_io::fabric::{Carried, PeerEvent, Service, Target};

/// Between network and node, so that they do not keep each other alive.
pub(super) struct Attached {
    node: Mutex<Option<Arc<Node>>>,
    /// The canary: nobody is said to be dead.
    hides_deaths: bool,
}

impl Attached {
    /// No node yet.
    pub fn new(hides_deaths: bool) -> Self {
        Self { node: Mutex::default(), hides_deaths }
    }

    /// Requests are served by this node from now on.
    pub fn set(&self, node: Arc<Node>) {
        *self.node.lock() = Some(node);
    }

    /// And from now on by nobody.
    pub fn clear(&self) {
        let node = self.node.lock().take();
        drop(node);
    }
}

impl Service for Attached {
    fn serve(
        &self,
        from: NodeId,
        request: Request,
        payload: Option<Payload>,
        target: Target,
    ) -> BoxFuture<'static, (Reply, Carried)> {
        let node = self.node.lock().clone();
        match node {
            Some(node) => node.serve(from, request, payload, target),
            None => Box::pin(ready((Reply::Fault(Errno::EAGAIN.into()), Carried::Nothing))),
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let node = self.node.lock().clone();
        let is_hidden = self.hides_deaths && event == PeerEvent::Dead;
        if let Some(node) = node {
            node.peer(peer, if is_hidden { PeerEvent::Unreachable } else { event });
        }
    }
}
