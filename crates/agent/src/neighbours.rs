//! How a node's death comes to be known to those who are not connected with it.
//!
//! Agents connect when they have something to ask, and idle connections may be closed, so most of a large job learn nothing of
//! a death by themselves. But each stays connected with its neighbours ([`Cluster::neighbours`]). Who finds that a node is
//! dead tells its own neighbours, unless they are the dead one's, too. Nobody believes it: who is told looks for itself, and
//! when it finds the same, tells on.

use std::sync::{Arc, Weak};
use tameike_core::wire::Request;
use tameike_core::wire::admin::AdminRequest;
use tameike_core::{Cluster, NodeId};
use tameike_fabric::Rpc;
use tameike_io::Runtime;

/// The neighbours of a node.
pub struct Neighbours {
    node: NodeId,
    cluster: Arc<Cluster>,
    runtime: Runtime,
    rpc: Weak<dyn Rpc>,
}

impl Neighbours {
    /// Those of `node`.
    pub fn new(node: NodeId, cluster: Arc<Cluster>, runtime: Runtime, rpc: &Arc<dyn Rpc>) -> Self {
        Self { node, cluster, runtime, rpc: Arc::downgrade(rpc) }
    }

    /// This node has found that another one is dead.
    pub(crate) fn tell(&self, dead: NodeId) {
        let informed = self.cluster.neighbours(dead);
        let told = self.cluster.neighbours(self.node);
        for neighbour in told.into_iter().filter(|node| *node != dead && !informed.contains(node)) {
            self.ask(neighbour, AdminRequest::Dead { node: dead });
        }
    }

    /// Another node says that a node is dead. Whether it is, the network finds out by asking it.
    pub(crate) fn look_for(&self, node: NodeId) {
        if self.cluster.node(node).is_some() && node != self.node {
            self.ask(node, AdminRequest::Status);
        }
    }

    fn ask(&self, node: NodeId, request: AdminRequest) {
        let Some(rpc) = self.rpc.upgrade() else { return };
        self.runtime.spawn(async move {
            if let Err(fault) = rpc.call(node, Request::Admin(request), None, None).await {
                log::debug!("telling {node} of a death, or looking for it: {fault}");
            }
        });
    }
}
