//! What stands between a node and the network: they would keep each other alive for good.

use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_agent::Node;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, NodeId};
use tameike_io::Payload;
use tameike_io::fabric::{PeerEvent, Service};

/// Between network and node, so that they do not keep each other alive.
#[derive(Default)]
pub(super) struct Attached(Mutex<Option<Arc<Node>>>);

impl Attached {
    /// Requests are served by this node from now on.
    pub fn set(&self, node: Arc<Node>) {
        *self.0.lock() = Some(node);
    }

    /// And from now on by nobody.
    pub fn clear(&self) {
        let node = self.0.lock().take();
        drop(node);
    }
}

impl Service for Attached {
    fn serve(
        &self,
        from: NodeId,
        request: Request,
        payload: Option<Payload>,
    ) -> BoxFuture<'static, (Reply, Option<Payload>)> {
        let node = self.0.lock().clone();
        match node {
            Some(node) => node.serve(from, request, payload),
            None => Box::pin(ready((Reply::Fault(Errno::EAGAIN.into()), None))),
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let node = self.0.lock().clone();
        if let Some(node) = node {
            node.peer(peer, event);
        }
    }
}
