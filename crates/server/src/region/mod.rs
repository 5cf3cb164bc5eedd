//! The coordinator of shared memory regions: the home of a region's inode.

use crate::meta::MetaService;
use std::sync::{Arc, Weak};
use tameike_core::wire::region::{RegionReply, RegionRequest};
use tameike_core::{Cluster, Errno, NodeId, Result};
use tameike_fabric::Rpc;
use tameike_io::Runtime;

/// The parts that the service needs.
pub struct RegionParts {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// Calls to other agents. Weak, since the agent owns both.
    pub rpc: Weak<dyn Rpc>,
    /// This node.
    pub node: NodeId,
    /// Metadata of this node's files.
    pub meta: Arc<MetaService>,
}

/// The coordinator of the regions whose home is one node.
pub struct RegionService {
    _parts: RegionParts,
}

impl RegionService {
    /// Creates the service of one node.
    pub fn new(parts: RegionParts) -> Arc<Self> {
        Arc::new(Self { _parts: parts })
    }

    /// Serves a request.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    pub async fn serve(&self, _from: NodeId, _request: RegionRequest) -> Result<RegionReply> {
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Ends the processes of a failed node.
    pub fn peer_failed(&self, _node: NodeId) {}
}
