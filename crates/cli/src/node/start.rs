//! The first line from a driver to a node.

use crate::settings::capacity::Capacity;
use serde::{Deserialize, Serialize};
use tameike_agent::control::AgentStart;

/// Everything that a node is told before it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStart {
    /// For the agent. Its capacity is worked out on the node, from the two fields below.
    pub start: AgentStart,
    /// Capacity as the user gave it.
    pub capacity: Capacity,
    /// How many nodes of the job share this host's memory or disk.
    pub sharers: u32,
    /// How many nodes the job has.
    pub node_count: u32,
    /// How long a flush that is under way may go on when the driver dies, in milliseconds.
    pub grace_ms: u64,
    /// How much to log.
    pub log_level: String,
    /// Whether the driver is on this host and has swept it, and removes the job's directory at the end.
    pub driver_is_here: bool,
}
