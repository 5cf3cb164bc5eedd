//! The driver of a job: starts the agents, runs the command, drains, and cleans up.
//!
//! It is one loop over events: lines from agents, exits of agents and of the command, signals, and requests of other commands
//! on its socket. Threads only produce these events; the loop owns all state.

mod address;
mod clients;
mod drain;
mod event;
mod finish;
mod gather;
pub(crate) mod launch;
mod link;
mod mirror;
pub mod protocol;
mod recover;
mod replicas;
mod resize;
mod run;
mod start;
mod start_volume;
mod status;
mod succession;
mod supervise;
mod volume;

pub(crate) use recover::recover;
pub(crate) use run::run;
pub(crate) use start_volume::create as create_volume;
pub(crate) use supervise::{Supervised, SupervisedStart, supervise};

use crate::place::base::{Base, JobDir};
use crate::place::record::JobRecord;
use event::{Event, Notice};
use gather::Gather;
use link::AgentLink;
use mirror::MirrorLink;
use replicas::Leases;
use resize::Resize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender};
use tameike_agent::control::{AgentMode, Secret, Undrained};
use tameike_core::NodeInfo;
use volume::Volume;

/// A running job.
struct Driver {
    base: Base,
    job_dir: JobDir,
    record: JobRecord,
    mode: AgentMode,
    /// The volume that the job serves.
    volume: Option<Volume>,
    /// What the agents of the job know and others do not.
    secret: Secret,
    /// The nodes with which the job began, with their addresses.
    founders: Vec<NodeInfo>,
    links: Vec<AgentLink>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    gathers: BTreeMap<u64, Gather>,
    /// Notices that [`Driver::next`] returns first.
    notices: VecDeque<Notice>,
    /// The leases of the nodes, once all agents of a job with replicas have joined.
    leases: Option<Leases>,
    /// The mirror of the shared directory.
    mirror: Option<MirrorLink>,
    /// Number of clients that have been sent the outcome of the mirror.
    mirrored: Arc<AtomicUsize>,
    /// Nodes that are being added, removed or restarted.
    resize: Option<Resize>,
    /// Nodes whose agents start while the job runs, and have not connected to the others.
    arriving: BTreeSet<u32>,
    next_id: u64,
    /// Nodes whose agent has exited or is unreachable, with the cause.
    lost: BTreeMap<u32, String>,
    /// Dirty data of agents that stopped regularly.
    left: BTreeMap<u32, Undrained>,
    stopping: bool,
    /// Messages on data that damaged journals lack.
    damage: Vec<String>,
    /// Messages on files that programs outside the job wrote below the mount points of its views.
    strays: Vec<String>,
}
