//! Messages between the authority of the home map, in the driver, and an agent of a job with replicas.

use serde::{Deserialize, Serialize};
use tameike_core::{HomeId, HomeMap, MapEpoch, NodeId};

/// A message of the authority, which grants a lease of [`tameike_core::limits::MAP_LEASE`], or ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseMessage {
    /// Its number among the messages to this agent, from 1.
    pub number: u64,
    /// Number of the last answer that the authority has received. The lease counts from when the agent sent that answer. `None` grants
    /// no lease.
    pub acknowledged: Option<u64>,
    /// The agent ends its lease before it answers.
    pub revoked: bool,
    /// The home map, if the agent has not confirmed that it has it.
    pub map: Option<HomeMap>,
}

/// The answer to a [`LeaseMessage`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// The number of the message.
    pub number: u64,
    /// The epoch of the agent's home map.
    pub epoch: MapEpoch,
    /// Nodes that the agent cannot reach.
    pub unreachable: Vec<NodeId>,
    /// Homes that the agent serves, each with a backup whose copy is of no use: it has other records, or its node cannot store changes.
    pub failed_copies: Vec<(HomeId, NodeId)>,
    /// Homes that the agent serves and has copied, each with the node that can be a backup now.
    pub copied: Vec<(HomeId, NodeId)>,
    /// Homes that the agent serves and that must not move now: processes use shared memory regions there.
    pub pinned: Vec<HomeId>,
    /// A change of the shared file system still runs that the agent began under an earlier lease.
    pub is_changing: bool,
    /// The agent's own store accepts no more changes.
    pub store_failed: bool,
}
