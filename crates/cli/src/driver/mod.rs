//! The driver of a job: starts the agents, runs the command, drains, and takes everything down.
//!
//! It is one loop over events: lines from agents, the end of an agent or of the command, signals, requests of
//! other commands on its socket. Threads only turn those into events; all state is the loop's.

mod address;
mod clients;
mod drain;
mod event;
mod finish;
mod gather;
pub mod launch;
mod link;
pub mod protocol;
mod recover;
mod run;
mod start;
mod status;
mod supervise;

pub use recover::recover;
pub use run::run;
pub use start::Starting;
pub use supervise::{Supervised, supervise};

use crate::place::base::{Base, JobDir};
use crate::place::record::JobRecord;
use event::Event;
use gather::Gather;
use link::AgentLink;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};
use tameike_agent::control::{AgentMode, Left};

/// A job that runs.
pub struct Driver {
    base: Base,
    job_dir: JobDir,
    record: JobRecord,
    mode: AgentMode,
    links: Vec<AgentLink>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    gathers: BTreeMap<u64, Gather>,
    next_id: u64,
    /// Nodes whose agent is gone, with what is known about it.
    lost: BTreeMap<u32, String>,
    /// What agents that ended in order left.
    left: BTreeMap<u32, Left>,
    stopping: bool,
    /// What is missing in journals that were damaged, in plain words.
    damage: Vec<String>,
    /// What programs outside of the job have written below the mounts of its views, in plain words.
    strays: Vec<String>,
}
