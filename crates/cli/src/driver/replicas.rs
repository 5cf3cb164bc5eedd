//! A job with replicas: the driver renews the leases of its nodes, and puts changes of the home map into effect.
//!
//! The record of the job has each map before any agent has it, so that `recover` continues with the last one.

use super::Driver;
use super::event::Notice;
use super::gather::{Gather, LEFT};
use super::protocol::ReplicaStatus;
use std::collections::BTreeMap;
use std::iter::once;
use std::time::Duration;
use tameike_agent::authority::{Authority, Cause, MapChange};
use tameike_agent::control::{AgentMode, AgentRequest, LeaseAnswer};
use tameike_core::limits::MAP_LEASE_INTERVAL;
use tameike_core::{Errno, Fault, HomeMap, MapEpoch, NodeId, NodeInfo, Result};
use tameike_io::os::process::monotonic;

/// Why a node that was added is excluded at first.
const ARRIVING: &str = "it is joining the job";

/// The leases of a job's nodes.
pub(super) struct Leases {
    pub(super) authority: Authority,
    /// Time of the next messages to all nodes.
    next_round: Duration,
    /// The record of the job lacks the map: no agent may get it.
    is_unwritten: bool,
    /// The user knows that the record cannot be written.
    is_reported: bool,
    /// Some homes lack a copy, after a failure.
    is_lacking: bool,
    /// Why nodes are excluded, as a clause about "it".
    causes: BTreeMap<u32, &'static str>,
}

impl Leases {
    /// Has the next messages to all nodes sent at once.
    pub(super) fn send_soon(&mut self) {
        self.next_round = monotonic();
    }
}

impl Driver {
    /// The map with which the agents begin: that of the record, or a first one, which the record then has. `None` without replicas.
    pub(super) fn first_map(&mut self, nodes: &[NodeInfo]) -> Result<Option<HomeMap>> {
        if self.record.plan.replicas > 1 && self.record.map.is_none() {
            let map = HomeMap::initial(nodes, self.record.plan.replicas);
            self.record.map = Some(map.map_err(|wrong| Fault::new(Errno::EINVAL, wrong))?);
        }
        Ok(self.record.map.clone())
    }

    /// Sends the first messages, when all agents have joined.
    pub(super) fn begin_leases(&mut self, infos: &[NodeInfo]) {
        let Some(map) = self.record.map.clone() else { return };
        let (nodes, now) = ((0..self.links.len() as u32).map(NodeId), monotonic());
        let mut authority = self.with_term(Authority::new(map, nodes, now));
        if self.mode != AgentMode::Recover {
            authority = authority.repairing(self.record.plan.replicas, infos);
        }
        for &node in self.lost.keys() {
            match self.volume.as_ref().is_some_and(|volume| volume.succession.may_run(node)) {
                true => authority.hung_up(NodeId(node)),
                false => authority.ended(NodeId(node)),
            }
        }
        let (is_unwritten, is_reported, is_lacking, causes) = Default::default();
        self.leases =
            Some(Leases { authority, next_round: now, is_unwritten, is_reported, is_lacking, causes });
        self.tend_leases();
    }

    /// The time at which [`Self::tend_leases`] is due; `None` without replicas, and when the agents stop.
    pub(super) fn leases_due(&self) -> Option<Duration> {
        let leases = self.leases.as_ref().filter(|_| !self.stopping)?;
        leases.authority.decision_due().into_iter().chain([leases.next_round]).min()
    }

    /// Decides about the map, and sends messages to all nodes if they are due.
    pub(super) fn tend_leases(&mut self) {
        let Some(leases) = self.leases.as_mut().filter(|_| !self.stopping) else { return };
        let now = monotonic();
        // The receipts of nodes that are asked at different times would lack files whose coordinator has changed.
        let is_draining = |gather: &Gather| matches!(gather.question, Some(AgentRequest::Drain { .. }));
        leases.authority.pause_moves(self.gathers.values().any(is_draining));
        let changes = leases.authority.tick(now);
        if !leases.authority.is_round_due() && now < leases.next_round {
            return;
        }
        leases.next_round = now + MAP_LEASE_INTERVAL;
        if !changes.is_empty() {
            leases.is_unwritten = true;
            self.record.map = Some(leases.authority.map().clone());
        }
        for change in changes {
            self.take_change(change);
        }
        self.report_repaired();
        if self.has_written_map() {
            (0..self.links.len() as u32).for_each(|node| self.send_lease(node));
        }
    }

    /// Adds nodes to the map, or nodes that were restarted. Other agents get it soon.
    pub(super) fn add_to_map(&mut self, infos: &[NodeInfo]) {
        let Some(leases) = &mut self.leases else { return };
        for info in infos {
            leases.authority.add(info.clone());
            leases.causes.insert(info.id.0, ARRIVING);
        }
        (leases.is_unwritten, leases.next_round) = (true, monotonic());
        self.record.map = Some(leases.authority.map().clone());
    }

    /// Takes the answer of an agent, and sends its next message at once if that is urgent.
    pub(super) fn take_lease(&mut self, node: u32, answer: LeaseAnswer) {
        let Some(leases) = &mut self.leases else { return };
        if leases.authority.answered(NodeId(node), answer, monotonic()) && self.has_written_map() {
            self.send_lease(node);
        }
    }

    /// Notes that the agent of a node has ended, or that the connection to it has.
    pub(super) fn take_lost_member(&mut self, node: u32) {
        // Only the ssh to another host has certainly ended.
        let may_run = self.lose_connection(node);
        let Some(leases) = &mut self.leases else { return };
        if may_run {
            leases.authority.hung_up(NodeId(node));
        } else {
            leases.authority.ended(NodeId(node));
        }
        self.tend_leases();
    }

    fn send_lease(&mut self, node: u32) {
        if self.arriving.contains(&node) {
            // It has no map yet.
            return;
        }
        let (Some(leases), Some(link)) = (&mut self.leases, self.links.get_mut(node as usize)) else {
            return;
        };
        if let Some(message) = leases.authority.message(NodeId(node), monotonic()) {
            link.send(self.next_id, &AgentRequest::Lease(message));
            self.next_id += 1;
        }
    }

    /// Writes the record if it lacks the current map. Until that succeeds, and most keepers have it, no messages are sent, and leases end.
    pub(super) fn has_written_map(&mut self) -> bool {
        self.try_write_map() && self.volume.as_ref().is_none_or(|volume| volume.succession.is_kept())
    }

    fn try_write_map(&mut self) -> bool {
        if !self.leases.as_ref().is_some_and(|leases| leases.is_unwritten) {
            return true;
        }
        let written = self.write_record();
        let Some(leases) = &mut self.leases else { return true };
        match written {
            Ok(()) => (leases.is_unwritten, leases.is_reported) = (false, false),
            Err(fault) if !leases.is_reported => {
                leases.is_reported = true;
                self.notices
                    .push_back(Notice::Message(format!("the nodes wait for the record of the job: {fault}")));
            }
            Err(_) => {}
        }
        !leases.is_unwritten
    }

    fn take_change(&mut self, change: MapChange) {
        let Some(leases) = &mut self.leases else { return };
        match change {
            MapChange::Excluded(node, cause) => {
                let why = match cause {
                    Cause::Failed => "it has failed",
                    Cause::Left => LEFT,
                    Cause::Silent => "it does not answer",
                    Cause::Unreachable => "it cannot be reached by others",
                    Cause::StoreFailed => "its device has failed",
                };
                leases.causes.insert(node.0, why);
                self.report_excluded(node.0, why);
                let fault = Fault::new(Errno::EHOSTDOWN, why);
                let gathered = self.give_up(node.0, &fault);
                self.notices.extend(gathered);
            }
            MapChange::Readmitted(node) => {
                let cause = leases.causes.remove(&node.0);
                let host = &self.record.plan.nodes[node.0 as usize].host;
                let what = match cause {
                    Some(ARRIVING) => "has joined the job",
                    _ => "answers again, and others reach it",
                };
                let message = format!("{node} on {host} {what}");
                self.notices.push_back(Notice::Message(message));
            }
            MapChange::Copying(home, node) => log::info!("{home} is being copied to {node}"),
            MapChange::Copied(home, node) => log::info!("{node} is a backup of {home} now"),
            MapChange::Moved(home, from, to) => log::info!("{home} has moved from {from} to {to}"),
            MapChange::Dropped(home, node) => {
                log::info!("{node} is no backup of {home} any more: its copy is of no use");
            }
        }
    }

    /// Reports an excluded node and the consequences to the user, unless its loss is reported as a failure of the job.
    fn report_excluded(&mut self, node: u32, why: &str) {
        if !self.survives_losses() && self.lost.contains_key(&node) {
            return;
        }
        let host = &self.record.plan.nodes[node as usize].host;
        if why == LEFT {
            self.notices.push_back(Notice::Message(format!("node {node} on {host} has left the job")));
            return;
        }
        let how = self.lost.get(&node).map_or_else(String::new, |how| format!(" ({how})"));
        let alone = self.record.map.as_ref().map_or(0, |map| map.served_by(NodeId(node)).count());
        let consequences = match alone {
            0 => "other nodes serve its data".to_owned(),
            _ => {
                let homes = self.record.map.as_ref().map_or(0, HomeMap::count);
                format!(
                    "{alone} of {homes} homes have no copy on another node, and their data is missing until it answers"
                )
            }
        };
        let what = match why.strip_prefix("it ") {
            Some(verb) => format!(" {verb}"),
            None => format!(": {why}"),
        };
        let message = format!("node {node} on {host}{what}{how}: {consequences}");
        self.notices.push_back(Notice::Message(message));
    }

    /// Reports to the user that all homes have all replicas again, if some have lacked one.
    fn report_repaired(&mut self) {
        let replicas = self.record.plan.replicas;
        let Some(leases) = &mut self.leases else { return };
        let map = leases.authority.map();
        let is_lacking = map.homes().any(|home| map.copies(home) < replicas as usize);
        if std::mem::replace(&mut leases.is_lacking, is_lacking) && !is_lacking {
            let message = format!("all data has {replicas} copies again");
            self.notices.push_back(Notice::Message(message));
        }
    }

    /// Whether every home has a copy on a node whose agent is not lost, so that the loss of agents does not end the job.
    pub(super) fn survives_losses(&self) -> bool {
        let is_lost = |node: &NodeId| self.lost.contains_key(&node.0) && !self.left.contains_key(&node.0);
        match &self.record.map {
            Some(map) => map.homes().all(|home| {
                let mut copies = once(map.primary(home)).chain(map.backups(home).iter().copied());
                !copies.all(|node| is_lost(&node))
            }),
            None => self.lost.is_empty(),
        }
    }

    /// Whether the store of a node has only old copies of homes, which other nodes serve.
    pub(super) fn is_stale(&self, node: u32) -> bool {
        self.record.map.as_ref().is_some_and(|map| map.served_by(NodeId(node)).next().is_none())
    }

    /// Why a node is excluded; `None` if it is not.
    pub(super) fn why_excluded(&self, node: u32) -> Option<&'static str> {
        let leases = self.leases.as_ref()?;
        let is_excluded = leases.authority.map().excludes(NodeId(node));
        is_excluded.then(|| leases.causes.get(&node).copied().unwrap_or("it has not answered yet"))
    }

    /// The epoch of the home map; `None` without replicas.
    pub(super) fn map_epoch(&self) -> Option<MapEpoch> {
        self.record.map.as_ref().map(|map| map.epoch)
    }

    /// Whether no home has got another primary since the map of an epoch; true without replicas.
    pub(super) fn keeps_primaries_of(&self, epoch: Option<MapEpoch>) -> bool {
        let unchanged = |map: &HomeMap| epoch.is_some_and(|epoch| map.keeps_primaries_of(epoch));
        self.record.map.as_ref().is_none_or(unchanged)
    }

    /// Whether the homes of a lost node have not moved to others yet, because it may still have its lease.
    pub(super) fn awaits_exclusion(&self) -> bool {
        let Some(map) = self.record.map.as_ref().filter(|_| self.leases_due().is_some()) else {
            return false;
        };
        self.survives_losses() && self.lost.keys().any(|node| !map.excludes(NodeId(*node)))
    }

    /// The state of the replicas, for `status`.
    pub(super) fn replica_status(&self) -> Option<ReplicaStatus> {
        let map = self.record.map.as_ref()?;
        Some(ReplicaStatus {
            wanted: self.record.plan.replicas,
            excluded: map
                .excluded()
                .iter()
                .map(|node| node.0)
                .filter(|node| !self.record.gone.contains(node))
                .collect(),
            homes: map.count(),
            homes_with_one_copy: map.homes().filter(|home| map.backups(*home).is_empty()).count() as u64,
            homes_without_node: map.homes_without_node().count() as u64,
            homes_being_copied: map.all_joining().len() as u64,
        })
    }
}
