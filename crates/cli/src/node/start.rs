//! The first line from a driver to a node.

use crate::place::record::JobRecord;
use serde::{Deserialize, Serialize};
use tameike_agent::control::AgentStart;

/// Everything that a node is told before it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStart {
    /// For the agent. Its capacity is worked out on the node, from the plan in the record and the sharers.
    pub start: AgentStart,
    /// How many nodes of the job share this host's memory or disk.
    pub sharers: u32,
    /// The job's record, by which `exec` on this host finds the other nodes.
    pub record: JobRecord,
    /// How long a flush that is under way may go on when the driver dies, in milliseconds.
    pub grace_ms: u64,
    /// How much to log.
    pub log_level: String,
    /// Whether the driver is on this host and has swept it, and removes the job's directory at the end.
    pub driver_is_here: bool,
}
