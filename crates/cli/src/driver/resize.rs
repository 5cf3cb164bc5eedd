//! Adds nodes to a running job, removes nodes from it, and restarts the agents of nodes: `tameike grow`, `shrink` and `restart`.
//!
//! The driver makes one change at a time, in steps between the events of its loop. Programs go on meanwhile: homes move while nodes serve
//! them (`tameike_agent::authority`).

use super::Driver;
use super::address::listen_addresses;
use super::event::{GatherId, START_ID};
use super::gather::{Gather, LEFT};
use super::link::AgentLink;
use super::protocol::DriverReply;
use crate::settings::hostfile::HostSpec;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tameike_agent::control::AgentRequest;
use tameike_core::limits::{ARRIVED_NODES_MAX, REPLICATED_NODES_MAX};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::process::monotonic;

/// Time between reports to the client.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// A change of the nodes of a job.
pub(super) struct Resize {
    kind: Kind,
    step: Step,
    /// Nodes that follow.
    rest: VecDeque<u32>,
    client: Sender<DriverReply>,
    next_report: Duration,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Grow,
    Shrink,
    Restart(Restarted),
}

/// How agents are restarted.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Restarted {
    /// The agents on this host run this program from then on.
    pub(super) program: Option<PathBuf>,
    /// Nodes of a volume that have failed get new stores, since theirs are lost.
    pub(super) new_store: bool,
}

enum Step {
    /// The agents of these nodes start.
    Starting { nodes: BTreeSet<u32>, deadline: Duration },
    /// They have failed to start, and end.
    Failing { nodes: BTreeSet<u32>, fault: Fault },
    /// They connect to the others.
    Joining { nodes: BTreeSet<u32>, answers: GatherId, deadline: Duration },
    /// Homes move until all nodes have even shares.
    Spreading { nodes: BTreeSet<u32> },
    /// The homes of a node move to the others.
    Emptying { node: u32 },
    /// An attempt ends to connect to the agent of a node that is started again.
    Disconnecting { node: u32 },
    /// The agent of a node ends, and its store is removed or stays.
    Stopping { node: u32, answers: GatherId, keeps_store: bool },
}

/// What becomes of a step.
enum Outcome {
    /// It is not done.
    Waiting,
    /// It is done, and this one follows.
    Next(Step),
    /// It was the last one.
    Made,
}

fn invalid(problem: impl Into<String>) -> Fault {
    Fault::new(Errno::EINVAL, problem.into())
}

fn each_once(nodes: &[u32]) -> VecDeque<u32> {
    nodes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

impl Driver {
    /// Begins a change for a client, which gets the replies.
    pub(super) fn grow(&mut self, hosts: Vec<HostSpec>, client: Sender<DriverReply>) {
        let first = self.record.plan.nodes.len() as u32;
        let begun = self.may_resize().and_then(|()| {
            let addresses = self.addresses_of(&hosts)?;
            let nodes: BTreeSet<_> = (first..).take(hosts.len()).collect();
            self.record.founders.get_or_insert(first);
            self.record.plan.nodes.extend(hosts);
            let started = nodes.iter().zip(addresses).try_for_each(|(&node, address)| {
                let start = self.node_start(node, address, self.volume.is_some());
                self.links.push(AgentLink::start(&self.record.plan, &start, self.sender.clone())?);
                Ok(())
            });
            if let Err(fault) = started {
                self.arriving.clone_from(&nodes);
                (first..self.links.len() as u32).for_each(|node| self.links[node as usize].kill());
                return Ok(Step::Failing { nodes, fault });
            }
            Ok(self.starting(nodes))
        });
        self.begin(Kind::Grow, begun, VecDeque::new(), client);
    }

    /// As [`Self::grow`], for nodes that leave the job.
    pub(super) fn shrink(&mut self, nodes: &[u32], client: Sender<DriverReply>) {
        let begun = self.may_resize().and_then(|()| self.check_leaving(nodes, true));
        let mut rest = each_once(nodes);
        let begun = begun.and_then(|()| {
            let node = rest.pop_front().ok_or_else(|| invalid("no node is given"))?;
            // All at once, so that no home moves from one of them to another.
            nodes.iter().for_each(|node| self.set_leaving(*node, true));
            Ok(Step::Emptying { node })
        });
        self.begin(Kind::Shrink, begun, rest, client);
    }

    /// As [`Self::grow`], for nodes whose agents are restarted one after another.
    pub(super) fn restart(&mut self, nodes: &[u32], how: Restarted, client: Sender<DriverReply>) {
        let begun = self.may_resize().and_then(|()| self.check_leaving(nodes, false));
        let mut rest = each_once(nodes);
        let begun = begun.and_then(|()| {
            let node = rest.pop_front().ok_or_else(|| invalid("no node is given"))?;
            self.leave_to_restart(node, &how)
        });
        self.begin(Kind::Restart(how), begun, rest, client);
    }

    fn begin(&mut self, kind: Kind, begun: Result<Step>, rest: VecDeque<u32>, client: Sender<DriverReply>) {
        match begun {
            Ok(step) => {
                self.resize = Some(Resize { kind, step, rest, client, next_report: monotonic() });
                self.tend_resize();
            }
            // The client may have disconnected.
            Err(fault) => drop(client.send(DriverReply::Failed(fault))),
        }
    }

    fn may_resize(&self) -> Result<()> {
        if self.resize.is_some() {
            return Err(Fault::new(Errno::EBUSY, "nodes of the job are being added, removed or restarted"));
        }
        if self.stopping || self.leases.is_none() {
            return Err(invalid(
                "the nodes of a job can change only if its data has replicas: start it with --replicas 2 or 3",
            ));
        }
        Ok(())
    }

    /// The addresses at which agents on new hosts listen.
    fn addresses_of(&self, hosts: &[HostSpec]) -> Result<Vec<IpAddr>> {
        let plan = &self.record.plan;
        let devices = plan.nodes.iter().chain(hosts).filter(|host| host.device).count();
        let arrived = self.record.map.as_ref().map_or(0, |map| map.arrived().len()) + hosts.len();
        if hosts.is_empty() || devices > REPLICATED_NODES_MAX || arrived > ARRIVED_NODES_MAX {
            return Err(invalid(format!(
                "a job gets 1 to {ARRIVED_NODES_MAX} nodes more, and has at most {REPLICATED_NODES_MAX} with a device"
            )));
        }
        if hosts.iter().any(|host| !host.device) {
            return Err(invalid("a node without a device cannot be added to a running job"));
        }
        let is_local = |host: &HostSpec| host.is_here() && host.address.is_none();
        let remote = plan.nodes.iter().find(|host| !is_local(host));
        if remote.is_none() && !hosts.iter().all(is_local) {
            return Err(invalid(
                "all agents of this job listen on the loopback of this host, where other hosts do not reach them: start the \
                 job with --hosts or --hostfile",
            ));
        }
        let all: Vec<_> = hosts.iter().chain(remote).cloned().collect();
        Ok(listen_addresses(&all)?.into_iter().take(hosts.len()).collect())
    }

    /// Checks that nodes can leave the job for good, or to be restarted.
    fn check_leaving(&self, nodes: &[u32], for_good: bool) -> Result<()> {
        let plan = &self.record.plan;
        for &node in nodes {
            if node as usize >= plan.nodes.len() || self.record.gone.contains(&node) {
                return Err(invalid(format!("the job has no node {node}")));
            }
            if node == 0 && self.volume.is_none() {
                return Err(invalid(
                    "node 0 runs the command of the job, or is that of its driver: it cannot leave",
                ));
            }
            if let Some(fault) = self.absence(node).filter(|_| !self.may_leave_failed(node, for_good)) {
                return Err(fault.context(format_args!("node {node}")));
            }
        }
        let stays = |node: &u32| {
            plan.nodes[*node as usize].device
                && self.absence(*node).is_none()
                && !(nodes.contains(node) && for_good)
        };
        let left = (0..plan.nodes.len() as u32).filter(stays).count();
        let (needed, what) = (plan.replicas as usize, if for_good { "are left" } else { "are there" });
        if left < needed {
            return Err(invalid(format!(
                "{needed} replicas need as many nodes with a device, and {left} {what}"
            )));
        }
        Ok(())
    }

    fn set_leaving(&mut self, node: u32, is_leaving: bool) {
        let Some(leases) = &mut self.leases else { return };
        if is_leaving { leases.authority.leave(NodeId(node)) } else { leases.authority.stay(NodeId(node)) }
    }

    /// Whether a node whose agent has ended can leave, or be started again: other nodes have all that it had. The store of a job's node
    /// may be needed still, that of a volume's is opened again.
    fn may_leave_failed(&self, node: u32, for_good: bool) -> bool {
        self.lost.contains_key(&node) && self.is_stale(node) && (for_good || self.volume.is_some())
    }

    fn leave_to_restart(&mut self, node: u32, how: &Restarted) -> Result<Step> {
        if self.is_connecting(node) {
            // It may wait for the host for long.
            self.links[node as usize].kill();
            return Ok(Step::Disconnecting { node });
        }
        if self.lost.contains_key(&node) {
            return self.start_again(node, how, how.new_store);
        }
        self.set_leaving(node, true);
        Ok(Step::Emptying { node })
    }

    /// Whether the agent of a node can end: other nodes have all that it has. They get all of its homes first, unless too few of them are
    /// there for all replicas, and the node comes back.
    fn can_stop(&self, kind: &Kind, node: u32) -> bool {
        let (Some(leases), plan) = (&self.leases, &self.record.plan) else { return false };
        let (map, of_node) = (leases.authority.map(), NodeId(node));
        if leases.authority.homes_on(of_node) == 0 {
            return true;
        }
        let is_there = |other: &u32| {
            *other != node && plan.nodes[*other as usize].device && self.absence(*other).is_none()
        };
        let others = (0..plan.nodes.len() as u32).filter(is_there).count();
        let has_other = |home| map.replicas(home).any(|other| other != of_node && !map.excludes(other));
        matches!(kind, Kind::Restart(_))
            && others < plan.replicas as usize
            && map.homes().all(|home| !map.is_on(home, of_node) || has_other(home))
    }

    /// Ends the agent of a node. The store of a volume's node stays if other nodes have not got all of its homes: the next agent then gets
    /// only what changes meanwhile.
    fn stop_node(&mut self, node: u32) -> Step {
        let grace_ms = self.record.plan.grace_s.saturating_mul(1000);
        let homes = self.leases.as_ref().map_or(0, |leases| leases.authority.homes_on(NodeId(node)));
        let keeps_store = self.volume.is_some() && homes > 0;
        let stop = AgentRequest::Stop { grace_ms, keep: false, discard: !keeps_store, packer: None };
        let answers = self.ask_some(&stop, None, |asked| asked == node);
        Step::Stopping { node, answers, keeps_store }
    }

    fn starting(&mut self, nodes: BTreeSet<u32>) -> Step {
        self.arriving.clone_from(&nodes);
        let waiting = Gather { waiting: nodes.clone(), ..Gather::default() };
        self.gathers.insert(START_ID, waiting);
        let deadline = monotonic() + Duration::from_secs(self.record.plan.start_limit_s);
        Step::Starting { nodes, deadline }
    }

    /// Makes the steps that are due.
    pub(super) fn tend_resize(&mut self) {
        while !self.stopping
            && let Some(mut resize) = self.resize.take()
        {
            let now = monotonic();
            if now >= resize.next_report {
                resize.next_report = now + REPORT_INTERVAL;
                let copies = self.leases.as_ref().map_or(0, |leases| leases.authority.copies_to_move());
                let is_gone = resize.client.send(DriverReply::Resizing { copies: copies as u64 }).is_err();
                if let (Step::Emptying { node }, true) = (&resize.step, is_gone) {
                    // The user has interrupted it. Other steps go on.
                    log::info!("node {node} and those after it stay in the job");
                    resize.rest.iter().chain([node]).for_each(|node| self.set_leaving(*node, false));
                    return;
                }
            }
            match self.outcome(&mut resize) {
                Ok(Outcome::Next(step)) => {
                    resize.step = step;
                    self.resize = Some(resize);
                }
                Ok(Outcome::Waiting) => {
                    self.resize = Some(resize);
                    return;
                }
                Ok(Outcome::Made) => drop(resize.client.send(DriverReply::Resized)),
                Err(fault) => {
                    resize.rest.drain(..).for_each(|node| self.set_leaving(node, false));
                    self.arriving.clear();
                    let _ = resize.client.send(DriverReply::Failed(fault));
                }
            }
        }
    }

    fn outcome(&mut self, resize: &mut Resize) -> Result<Outcome> {
        let Resize { kind, step, rest, .. } = resize;
        match step {
            Step::Starting { nodes, deadline } => self.await_ready(nodes, *deadline),
            Step::Failing { nodes, fault } => {
                let has_ended =
                    |node: &u32| self.lost.contains_key(node) || *node as usize >= self.links.len();
                if !nodes.iter().all(has_ended) {
                    return Ok(Outcome::Waiting);
                }
                if *kind == Kind::Grow {
                    self.forget_new_nodes(nodes);
                }
                Err(fault.clone())
            }
            Step::Joining { nodes, answers, deadline } => self.await_joined(nodes, *answers, *deadline),
            Step::Spreading { nodes } => Ok(match self.is_spread(nodes)? {
                false => Outcome::Waiting,
                true => match (rest.pop_front(), &*kind) {
                    (Some(node), Kind::Restart(how)) => Outcome::Next(self.leave_to_restart(node, how)?),
                    _ => Outcome::Made,
                },
            }),
            Step::Emptying { node } => {
                let node = *node;
                if self.may_leave_failed(node, *kind == Kind::Shrink) {
                    return self.leave_for_good(node, rest);
                }
                if let Some(how) = self.lost.get(&node) {
                    return Err(Fault::new(Errno::EHOSTDOWN, format!("node {node} has failed: {how}")));
                }
                let can_stop = self.can_stop(kind, node);
                Ok(if can_stop { Outcome::Next(self.stop_node(node)) } else { Outcome::Waiting })
            }
            Step::Disconnecting { node } => match &*kind {
                Kind::Restart(how) if !self.is_connecting(*node) => {
                    Ok(Outcome::Next(self.leave_to_restart(*node, how)?))
                }
                _ => Ok(Outcome::Waiting),
            },
            Step::Stopping { node, answers, keeps_store } => {
                self.await_stopped(kind, (*node, *keeps_store), *answers, rest)
            }
        }
    }

    /// Waits until new agents are ready; then the map has their nodes, and they get it.
    fn await_ready(&mut self, nodes: &BTreeSet<u32>, deadline: Duration) -> Result<Outcome> {
        let mut faults = self.start_faults(START_ID, |node| nodes.contains(&node));
        if faults.is_empty() && monotonic() >= deadline {
            faults.push(format!("did not become ready within {} s", self.record.plan.start_limit_s));
        }
        if !faults.is_empty() {
            self.take_gather(START_ID);
            for &node in nodes.iter().filter(|node| !self.lost.contains_key(*node)) {
                self.links[node as usize].hang_up();
                self.links[node as usize].kill();
            }
            let fault = Fault::new(Errno::EHOSTDOWN, faults.join("; "));
            return Ok(Outcome::Next(Step::Failing { nodes: nodes.clone(), fault }));
        }
        if !self.is_gathered(START_ID) {
            return Ok(Outcome::Waiting);
        }
        let ready = self.take_gather(START_ID);
        let infos = self.take_ready(ready)?;
        self.add_to_map(&infos);
        Ok(Outcome::Next(Step::Joining { nodes: nodes.clone(), answers: START_ID, deadline }))
    }

    fn await_joined(
        &mut self,
        nodes: &BTreeSet<u32>,
        answers: GatherId,
        deadline: Duration,
    ) -> Result<Outcome> {
        if answers == START_ID {
            // No agent gets a map that the record of the job lacks.
            if !self.has_written_map() {
                return Ok(Outcome::Waiting);
            }
            let join = AgentRequest::Join { nodes: self.founders.clone(), map: self.record.map.clone() };
            let answers = self.ask_arriving(&join, nodes);
            return Ok(Outcome::Next(Step::Joining { nodes: nodes.clone(), answers, deadline }));
        }
        let mut faults = self.start_faults(answers, |node| nodes.contains(&node));
        if faults.is_empty() && monotonic() >= deadline {
            faults.push(format!("did not connect within {} s", self.record.plan.start_limit_s));
        }
        if !faults.is_empty() {
            nodes.iter().for_each(|node| self.links[*node as usize].kill());
            return Err(Fault::new(Errno::EHOSTDOWN, faults.join("; ")));
        }
        if !self.is_gathered(answers) {
            return Ok(Outcome::Waiting);
        }
        self.take_gather(answers);
        self.arriving.clear();
        Ok(Outcome::Next(Step::Spreading { nodes: nodes.clone() }))
    }

    /// Whether nodes have joined the job, and all have even shares of the homes.
    fn is_spread(&self, nodes: &BTreeSet<u32>) -> Result<bool> {
        for node in nodes {
            if let Some(how) = self.lost.get(node) {
                return Err(Fault::new(Errno::EHOSTDOWN, format!("node {node} has failed: {how}")));
            }
        }
        let Some(leases) = &self.leases else { return Ok(false) };
        let has_joined = |node: &u32| !leases.authority.map().excludes(NodeId(*node));
        Ok(nodes.iter().all(has_joined) && leases.authority.copies_to_move() == 0)
    }

    fn await_stopped(
        &mut self,
        kind: &Kind,
        (node, keeps_store): (u32, bool),
        answers: GatherId,
        rest: &mut VecDeque<u32>,
    ) -> Result<Outcome> {
        if !self.lost.contains_key(&node) {
            return Ok(Outcome::Waiting);
        }
        let is_excluded = |driver: &Self| {
            driver.leases.as_ref().is_some_and(|leases| leases.authority.map().excludes(NodeId(node)))
        };
        if !is_excluded(self) {
            self.take_lost_member(node);
            if !is_excluded(self) {
                return Ok(Outcome::Waiting);
            }
        }
        self.take_gather(answers);
        match kind {
            Kind::Restart(how) => self.start_again(node, how, !keeps_store).map(Outcome::Next),
            Kind::Grow | Kind::Shrink => self.leave_for_good(node, rest),
        }
    }

    /// Notes that a node whose agent has ended has left, and begins with the next one.
    fn leave_for_good(&mut self, node: u32, rest: &mut VecDeque<u32>) -> Result<Outcome> {
        self.lost.insert(node, LEFT.to_owned());
        self.record.gone.push(node);
        self.record.nodes.retain(|record| record.node != NodeId(node));
        self.write_record()?;
        Ok(rest.pop_front().map_or(Outcome::Made, |node| Outcome::Next(Step::Emptying { node })))
    }

    /// Starts the agent of a node again. The store of a volume's node may be new.
    fn start_again(&mut self, node: u32, how: &Restarted, is_new_store: bool) -> Result<Step> {
        let host = self.record.plan.nodes[node as usize].clone();
        let address = self.addresses_of(&[host])?.remove(0);
        let start = self.node_start(node, address, is_new_store);
        let program = how.program.clone().unwrap_or_else(|| self.record.plan.remote_program.clone());
        self.links[node as usize] =
            AgentLink::start_program(&program, &self.record.plan, &start, self.sender.clone())?;
        self.lost.remove(&node);
        self.left.remove(&node);
        Ok(self.starting([node].into()))
    }

    /// Removes nodes that could not be started, which have the highest numbers.
    fn forget_new_nodes(&mut self, nodes: &BTreeSet<u32>) {
        let Some(first) = nodes.first() else { return };
        for node in nodes {
            self.lost.remove(node);
            self.left.remove(node);
            if self.record.plan.nodes[*node as usize].is_here() {
                let discarded = crate::place::janitor::discard_node(self.job_dir.path(), *node);
                discarded.unwrap_or_else(|fault| log::warn!("removing what node {node} has left: {fault}"));
            }
        }
        self.links.truncate(*first as usize);
        self.record.plan.nodes.truncate(*first as usize);
        if let Err(fault) = self.write_record() {
            log::warn!("{fault}");
        }
    }
}
