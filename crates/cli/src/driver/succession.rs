//! How drivers of a volume follow one another: each has a term that most keepers of the record have promised, and uses only records that
//! most keep (`tameike_agent::keepers`).
//!
//! Agents of a volume run on when a driver or its connections fail. The next driver connects to them, and the same one connects again.

use super::Driver;
use super::event::Notice;
use super::link::AgentLink;
use crate::place::kept;
use crate::place::volume::{VolumeRecord, VolumeState};
use crate::volume::survey::Survey;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_agent::authority::{Authority, TAKEOVER_TIME};
use tameike_agent::control::{AgentReply, AgentRequest};
use tameike_agent::keepers::{Found, Keeper, Keepers, Keeping, Kept, RecordVersion, Term, find};
use tameike_core::{Errno, Fault, NodeId, NodeInfo, Result};
use tameike_io::os::process::{ProcessId, monotonic};

/// Time for agents to promise a term, once most keepers have.
const PROMISE_TIME: Duration = Duration::from_secs(2);
/// Time for agents to exit that are too few to go on.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(5);
/// Pause between attempts to connect to an agent again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(5);

/// What the driver of a volume knows about other drivers, and about agents that it may have lost.
#[derive(Default)]
pub(super) struct Succession {
    /// What the nodes kept before the start: the highest promised term, and the version of the newest record.
    promised: Term,
    newest: Option<RecordVersion>,
    /// The records of this driver, once it has a term.
    keeping: Option<Keeping>,
    /// The keepers that have promised the term, and when they were asked.
    promises: Vec<Keeper>,
    asked: Duration,
    /// The numbers of the stores of nodes.
    stores: BTreeMap<NodeId, u64>,
    /// Lost nodes whose agents may run still, with the times of the next attempts to connect to them.
    may_run: BTreeMap<u32, Duration>,
    /// Nodes to which the driver is connecting again, until the attempt succeeds or its process ends. False if the agent does not run.
    connecting: BTreeMap<u32, bool>,
    /// The driver connects to agents that run.
    pub(super) adopts: bool,
    /// Only to stop them.
    pub(super) only_stops: bool,
}

/// What the keepers that have promised a term keep.
type Promises = BTreeMap<Keeper, Kept<String>>;

impl Succession {
    /// That of a driver that starts after a survey, and connects to the agents if they run, or starts them.
    pub(super) fn after(survey: &Survey, adopts: bool) -> Self {
        let newest = survey.newest.as_ref().map(|(version, _)| *version);
        Self { promised: survey.promised, newest, adopts, ..Self::default() }
    }

    /// The term of the driver, once it has one.
    pub(super) fn term(&self) -> Option<Term> {
        self.keeping.as_ref().map(Keeping::term)
    }

    /// Whether most keepers keep the current record.
    pub(super) fn is_kept(&self) -> bool {
        self.keeping.as_ref().is_none_or(Keeping::is_kept)
    }

    /// Whether the agent of a lost node may run still.
    pub(super) fn may_run(&self, node: u32) -> bool {
        self.may_run.contains_key(&node)
    }

    /// Has the driver connect to the agent of a lost node again, which may run still.
    pub(super) fn reconnect(&mut self, node: u32) {
        self.may_run.insert(node, monotonic() + RECONNECT_PAUSE);
    }
}

impl Driver {
    /// Has the agents promise the term of this driver, which so takes the volume over from the driver before.
    ///
    /// # Errors
    /// - `EBUSY` if another driver serves the volume
    /// - `EHOSTDOWN` if most keepers do not promise it
    /// - `EAGAIN` if another driver has changed the record since the survey
    pub(super) fn take_term(&mut self, deadline: Duration) -> Result<()> {
        let Some(volume) = &mut self.volume else { return Ok(()) };
        let (term, surveyed) = (Term(volume.succession.promised.0 + 1), volume.succession.newest);
        self.ask_promises(term, true, deadline)?;
        let asked = monotonic();
        let (kept, keeping) = self.ask_promises(term, false, deadline)?;
        let newest = kept.values().filter_map(|kept| kept.newest.as_ref()).map(|newest| newest.version).max();
        let Some(volume) = &mut self.volume else { return Ok(()) };
        let succession = &mut volume.succession;
        if newest != surveyed {
            let message = "another driver has just changed the record of the volume: run the command again";
            return Err(Fault::new(Errno::EAGAIN, message));
        }
        let known = keeping.keepers().iter().chain(kept.keys().copied());
        succession.stores = known.map(|keeper| (keeper.node, keeper.store)).collect();
        succession.promises = kept.into_keys().collect();
        (succession.asked, succession.keeping) = (asked, Some(keeping));
        Ok(())
    }

    /// Asks the agents to promise a term, or whether they would. Returns what the keepers among them keep, and what follows for this driver.
    fn ask_promises(
        &mut self,
        term: Term,
        is_trial: bool,
        deadline: Duration,
    ) -> Result<(Promises, Keeping)> {
        let is_new = self.volume.as_ref().is_some_and(|volume| volume.succession.newest.is_none());
        let id = self.ask(&AgentRequest::Promise { term, is_trial }, None);
        self.await_gather(id, deadline.min(monotonic() + PROMISE_TIME));
        let (mut kept, mut faults) = (Promises::new(), Vec::new());
        for (node, answer) in self.take_gather(id).answers {
            match answer {
                AgentReply::Promised { keeper: Some(keeper), kept: known } => {
                    kept.insert(keeper, *known);
                }
                AgentReply::Failed(fault) if fault.errno == Errno::EBUSY => return Err(fault),
                AgentReply::Failed(fault) => faults.push(format!("node {node}: {fault}")),
                _ => {}
            }
        }
        let keeping = match find(&kept) {
            Found::Nothing if is_new => Keeping::new(term),
            Found::Newest(found) => Keeping::from_found(term, found),
            Found::Nothing | Found::TooFew(_) => {
                let message = format!(
                    "most of the nodes that keep the record of the volume do not accept this driver: {}",
                    faults.join("; ")
                );
                return Err(Fault::new(Errno::EHOSTDOWN, message));
            }
        };
        Ok((kept, keeping))
    }

    /// Has the keepers keep a record, if this driver has a term. [`Succession::is_kept`] says when most do.
    pub(super) fn send_record(&mut self, record: &VolumeRecord) -> Result<()> {
        let nodes = self.keeper_candidates();
        let map = self.record.map.clone();
        let is_up = |node| map.as_ref().is_none_or(|map| !map.excludes(node));
        let Some(volume) = &mut self.volume else { return Ok(()) };
        let Succession { keeping: Some(keeping), stores, .. } = &mut volume.succession else {
            return Ok(());
        };
        keeping.begin(Keepers::choose(&nodes, stores, keeping.keepers(), is_up));
        let text = match record.job.has_other_hosts() {
            true => kept::encode(&record.clone().seen_from_elsewhere())?,
            false => kept::encode(record)?,
        };
        let record = keeping.record(text);
        let keepers: BTreeSet<_> = record.keepers.iter().chain(record.before.iter()).collect();
        let request = AgentRequest::Keep(Box::new(record));
        for keeper in keepers.into_iter().filter(|keeper| stores.get(&keeper.node) == Some(&keeper.store)) {
            if let Some(link) = self.links.get_mut(keeper.node.0 as usize) {
                link.send(self.next_id, &request);
                self.next_id += 1;
            }
        }
        self.note_kept();
        Ok(())
    }

    /// The nodes that could keep the record.
    fn keeper_candidates(&self) -> Vec<NodeInfo> {
        let nodes = (0..self.record.plan.nodes.len() as u32).filter(|node| !self.record.gone.contains(node));
        nodes.map(|node| self.node_info(node, String::new())).collect()
    }

    /// Notes that a node keeps a record.
    pub(super) fn take_kept(&mut self, keeper: Option<Keeper>, version: RecordVersion) -> Option<Notice> {
        let keeping = self.volume.as_mut()?.succession.keeping.as_mut()?;
        if !keeping.kept(keeper?, version) {
            return None;
        }
        self.note_kept();
        Some(Notice::Gathered)
    }

    /// If the record is kept, the agents can have its map.
    fn note_kept(&mut self) {
        let Some(volume) = &self.volume else { return };
        if let (Some(keeping), Some(leases)) = (&volume.succession.keeping, &mut self.leases)
            && keeping.is_kept()
        {
            leases.authority.set_keepers(keeping.keepers().clone());
            leases.send_soon();
        }
    }

    /// Waits until most keepers keep the current record.
    pub(super) fn await_kept(&mut self, deadline: Duration) -> Result<()> {
        while !self.volume.as_ref().is_none_or(|volume| volume.succession.is_kept()) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => {
                    let message = "most of the nodes that keep the record of the volume do not answer";
                    return Err(Fault::new(Errno::EHOSTDOWN, message));
                }
                Notice::Superseded(host) => return Err(superseded(&host)),
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Stops agents that are too few to go on. Each serves this driver if no other one is there.
    pub(super) fn stop_leftovers(&mut self) {
        let Some(volume) = &self.volume else { return };
        let term = Term(volume.succession.promised.0 + 1);
        let id = self.ask(&AgentRequest::Promise { term, is_trial: false }, None);
        self.await_gather(id, monotonic() + PROMISE_TIME);
        self.take_gather(id);
        self.stop_agents(Duration::ZERO, LEFTOVERS_LIMIT, true);
    }

    /// Waits until no node has a lease of the driver before, if some nodes of the volume do not answer.
    pub(super) fn await_old_leases(&mut self) {
        let Some(volume) = &self.volume else { return };
        let has_keepers = volume.succession.keeping.as_ref().is_some_and(|one| !one.keepers().is_empty());
        let end = volume.succession.asked + PROMISE_TIME + TAKEOVER_TIME;
        if has_keepers && !self.creates_volume() && self.lost.keys().any(|node| !self.left.contains_key(node))
        {
            while !matches!(self.next(Some(end)), Notice::TimedOut) {}
        }
    }

    /// The authority of the driver of a volume.
    pub(super) fn with_term(&self, authority: Authority) -> Authority {
        let Some(volume) = &self.volume else { return authority };
        let Succession { keeping: Some(keeping), promises, asked, .. } = &volume.succession else {
            return authority;
        };
        let mut authority = authority.taking_over(keeping.term(), promises, *asked, monotonic());
        authority.set_keepers(keeping.keepers().clone());
        authority
    }

    /// Notes that the connection to an agent has ended. Returns true if the agent may run still.
    pub(super) fn lose_connection(&mut self, node: u32) -> bool {
        let is_here = self.record.plan.nodes[node as usize].is_here();
        let process = self.record.nodes.iter().find(|record| record.node == NodeId(node));
        let process = process.map(|record| ProcessId { pid: record.pid, start: record.pid_start });
        let Some(volume) = &mut self.volume else { return !is_here };
        // In a job that has not started, an agent ends with its connection.
        let may_run = volume.succession.term().is_some()
            && if is_here { process.is_some_and(|process| process.is_alive()) } else { true };
        if may_run {
            volume.succession.reconnect(node);
        }
        may_run || !is_here
    }

    /// The time of the next attempt to connect to an agent again.
    pub(super) fn reconnect_due(&self) -> Option<Duration> {
        let succession = &self.volume.as_ref().filter(|_| !self.stopping)?.succession;
        succession.may_run.values().min().copied()
    }

    /// Connects to agents again to which connections were lost.
    pub(super) fn tend_lost_agents(&mut self) {
        let now = monotonic();
        let Some(volume) = self.volume.as_mut().filter(|_| !self.stopping) else { return };
        let due: Vec<_> =
            volume.succession.may_run.iter().filter(|(_, at)| **at <= now).map(|(node, _)| *node).collect();
        for node in due {
            let Some(volume) = &mut self.volume else { return };
            volume.succession.may_run.remove(&node);
            if self.record.gone.contains(&node) || !self.lost.contains_key(&node) {
                continue;
            }
            volume.succession.connecting.insert(node, true);
            let mut start = self.node_start(node, std::net::Ipv4Addr::LOCALHOST.into(), false);
            (start.only_running, start.term) =
                (true, self.volume.as_ref().and_then(|one| one.succession.term()));
            match AgentLink::start(&self.record.plan, &start, self.sender.clone()) {
                Ok(link) => self.links[node as usize] = link,
                Err(fault) => {
                    log::warn!("{fault}");
                    self.give_up_connecting(node);
                }
            }
        }
    }

    /// Whether the driver is connecting to the agent of a node again.
    pub(super) fn is_connecting(&self, node: u32) -> bool {
        self.volume.as_ref().is_some_and(|volume| volume.succession.connecting.contains_key(&node))
    }

    /// The attempt has failed: it is made again if the agent may run.
    pub(super) fn give_up_connecting(&mut self, node: u32) {
        if let Some(volume) = &mut self.volume
            && volume.succession.connecting.remove(&node) == Some(true)
        {
            volume.succession.reconnect(node);
        }
    }

    /// Takes the first reply over a new connection.
    pub(super) fn take_connected(&mut self, node: u32, reply: AgentReply) -> Option<Notice> {
        let Some(volume) = &mut self.volume else { return None };
        match reply {
            AgentReply::Ready { node: record, address, keeper, running: Some(_) } => {
                volume.succession.connecting.remove(&node);
                // It may not have promised the term when the driver took over.
                keeper.into_iter().for_each(|keeper| self.take_store(keeper));
                self.lost.remove(&node);
                self.left.remove(&node);
                self.record.nodes.retain(|other| other.node != record.node);
                self.record.nodes.push(record);
                if let Some(founder) = self.founders.iter_mut().find(|info| info.id == NodeId(node)) {
                    founder.address = address;
                }
                if let Some(leases) = &mut self.leases {
                    leases.authority.connected(NodeId(node));
                    leases.send_soon();
                }
                // It may be a keeper without the current record.
                if let Err(fault) = self.write_record() {
                    log::warn!("{fault}");
                }
                log::info!("node {node} is connected again");
                None
            }
            AgentReply::Failed(fault) if fault.errno == Errno::ESRCH => {
                volume.succession.connecting.insert(node, false);
                if let Some(leases) = &mut self.leases {
                    leases.authority.ended(NodeId(node));
                    leases.send_soon();
                }
                None
            }
            AgentReply::Failed(fault) if fault.errno == Errno::ESTALE => {
                Some(Notice::Superseded(fault.to_string()))
            }
            // Its process ends.
            other => {
                log::warn!("connecting to node {node} again: {other:?}");
                None
            }
        }
    }

    /// Notes that the agent of a node has a store, which may be new.
    pub(super) fn take_store(&mut self, keeper: Keeper) {
        if let Some(volume) = &mut self.volume {
            volume.succession.stores.insert(keeper.node, keeper.store);
        }
        if let Some(leases) = &mut self.leases {
            leases.authority.set_store(keeper);
        }
    }

    /// Notes in the record that the volume is being stopped, so that no keeper starts the next driver.
    pub(super) fn keep_stopping(&mut self) -> Result<()> {
        if let Some(volume) = &mut self.volume {
            volume.state = VolumeState::Stopping;
        }
        self.write_record()
    }

    /// Whether the driver connects to agents that run, and starts none.
    pub(super) fn adopts(&self) -> bool {
        self.volume.as_ref().is_some_and(|volume| volume.succession.adopts)
    }
}

/// The fault of a driver that serves a volume no more.
pub(super) fn superseded(host: &str) -> Fault {
    Fault::new(Errno::ESTALE, format!("another driver serves the volume now, on {host}"))
}
