//! Propagates the failure of a node to nodes that are not connected with it.
//!
//! Agents connect on demand and close idle connections, so most nodes of a large job do not see a failure. But each agent stays
//! connected with its neighbours ([`Cluster::neighbours`]). An agent that detects a failure notifies its neighbours, except those
//! that are also neighbours of the failed node. A notified agent verifies the failure itself before it notifies its neighbours.

use std::sync::{Arc, Weak};
use tameike_core::wire::Request;
use tameike_core::wire::admin::AdminRequest;
use tameike_core::{Cluster, NodeId};
use tameike_fabric::Rpc;
use tameike_io::Runtime;

/// Notifies the neighbours of a node.
pub struct Neighbours {
    node: NodeId,
    cluster: Arc<Cluster>,
    runtime: Runtime,
    rpc: Weak<dyn Rpc>,
}

impl Neighbours {
    /// Creates the notifier of `node`.
    pub fn new(node: NodeId, cluster: Arc<Cluster>, runtime: Runtime, rpc: &Arc<dyn Rpc>) -> Self {
        Self { node, cluster, runtime, rpc: Arc::downgrade(rpc) }
    }

    pub(crate) fn announce_failure(&self, failed: NodeId) {
        let informed = self.cluster.neighbours(failed);
        let neighbours = self.cluster.neighbours(self.node);
        for neighbour in neighbours.into_iter().filter(|node| *node != failed && !informed.contains(node)) {
            self.send(neighbour, AdminRequest::Failed { node: failed });
        }
    }

    /// Verifies a failure that another node reported: if the node has failed, the call makes the fabric report it.
    pub(crate) fn probe(&self, node: NodeId) {
        if self.cluster.node(node).is_some() && node != self.node {
            self.send(node, AdminRequest::Status);
        }
    }

    fn send(&self, node: NodeId, request: AdminRequest) {
        let Some(rpc) = self.rpc.upgrade() else { return };
        self.runtime.spawn(async move {
            if let Err(fault) = rpc.call(node.into(), Request::Admin(request), None, None).await {
                log::debug!("notifying {node} of a failed node, or probing it: {fault}");
            }
        });
    }
}
