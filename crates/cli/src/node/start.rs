//! The first line that a driver sends to a node.

use crate::place::record::JobRecord;
use serde::{Deserialize, Serialize};
use tameike_agent::control::AgentStart;
use tameike_agent::keepers::Term;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStart {
    /// Parameters of the agent. The node computes its capacity from the plan in the record and `sharers`.
    pub start: AgentStart,
    /// The store of a volume is new. Otherwise it must be there.
    #[serde(default)]
    pub is_new_store: bool,
    /// Number of nodes of the job that share this host's memory or disk.
    pub sharers: u32,
    /// The job's record, with which `exec` on this host finds the other nodes.
    pub record: JobRecord,
    /// Time in milliseconds for a flush after the driver has exited.
    pub grace_ms: u64,
    pub log_level: String,
    /// Connect to the agent of a volume that runs already, and start none.
    #[serde(default)]
    pub only_running: bool,
    /// The driver serves the volume already, with this term, and connects to the agent again.
    #[serde(default)]
    pub term: Option<Term>,
    /// The host of the driver.
    pub driver_host: String,
    /// The driver is on this host: it has removed leftovers of other jobs, and removes the job's directory at the end.
    pub driver_is_here: bool,
}
