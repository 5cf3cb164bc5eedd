//! Starts a job: starts the agents, waits until all are ready, and sends each the addresses of the others.

use super::Driver;
use super::address::listen_addresses;
use super::event::Notice;
use super::event::{GatherId, START_ID};
use super::gather::{Gather, LEFT};
use super::link::AgentLink;
use super::volume::Volume;
use crate::node::start::NodeStart;
use crate::place::base::{Base, JobDir};
use crate::place::record::JobRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use tameike_agent::control::{
    AgentMode, AgentReply, AgentRequest, AgentStart, CONTROL_VERSION, DeviceStart, Secret, Undrained,
};
use tameike_core::{Errno, Fault, HomeMap, NodeId, NodeInfo, Result};
use tameike_io::os::process::{host_name, monotonic, random_bytes};
use tameike_io::os::signal;

/// Variable with the log level of agents.
const LOG_VARIABLE: &str = "TAMEIKE_LOG";
/// After one agent has failed to start, time for others to report their faults too.
const FAULTS_TIME: Duration = Duration::from_secs(3);
/// Time for nodes that were excluded to reach the others.
const READMISSION_LIMIT: Duration = Duration::from_secs(10);
/// Time for agents that run to reply to the next driver of their volume, while programs wait.
const ADOPTION_LIMIT: Duration = Duration::from_secs(5);

/// Input of [`Driver::start`].
pub(super) struct Starting {
    /// The user's directory for jobs.
    pub base: Base,
    /// The job's directory.
    pub job_dir: JobDir,
    /// The job's record.
    pub record: JobRecord,
    /// What the agents do.
    pub mode: AgentMode,
    /// The volume that the job serves.
    pub volume: Option<Volume>,
}

fn interrupted(arrived: signal::Arrived) -> Fault {
    let message = format!("signal {} arrived while the job was starting", arrived.signal);
    Fault::new(Errno::EINTR, message)
}

impl Driver {
    /// Starts the agents and connects them; returns when all serve. After a fault, everything that was started is stopped.
    pub fn start(starting: Starting) -> Result<Self> {
        let Starting { base, job_dir, record, mode, volume } = starting;
        let (sender, events) = channel();
        let secret = Secret(random_bytes()?);
        let mut driver = Self {
            base,
            job_dir,
            record,
            mode,
            volume,
            secret,
            founders: Vec::new(),
            links: Vec::new(),
            sender,
            events,
            gathers: BTreeMap::new(),
            notices: VecDeque::new(),
            leases: None,
            mirror: None,
            mirrored: Arc::default(),
            resize: None,
            arriving: BTreeSet::new(),
            next_id: START_ID + 1,
            lost: BTreeMap::new(),
            left: BTreeMap::new(),
            stopping: false,
            damage: Vec::new(),
            strays: Vec::new(),
        };
        match driver.bring_up().and_then(|()| driver.start_mirror()) {
            Ok(()) => Ok(driver),
            Err(fault) => {
                driver.take_down_failed_start();
                Err(fault)
            }
        }
    }

    fn bring_up(&mut self) -> Result<()> {
        let to_loop = self.sender.clone();
        // The receiver lives until the process exits.
        signal::watch_ending(move |arrived| drop(to_loop.send(super::Event::Signal(arrived))))?;
        let limit_s = self.record.plan.start_limit_s;
        let deadline = monotonic() + Duration::from_secs(limit_s);
        if !self.adopts() {
            self.write_record()?;
        }
        self.start_agents()?;
        let ready_by = if self.adopts() { monotonic() + ADOPTION_LIMIT } else { deadline };
        let ready = self.await_start(START_ID, ready_by, "become ready")?;
        let nodes = self.collect_nodes(ready)?;
        if self.adopts() {
            self.check_adopted()?;
        }
        self.take_term(deadline)?;
        let founders = self.record.founders.map_or(nodes.len(), |count| nodes.len().min(count as usize));
        let (founders, added) = nodes.split_at(founders);
        self.founders = founders.to_vec();
        if self.adopts() {
            self.write_record()?;
            self.await_kept(deadline)?;
        } else {
            self.join(&nodes, added, deadline)?;
        }
        self.begin_leases(&nodes);
        self.await_readmission(deadline.min(monotonic() + READMISSION_LIMIT))?;
        if let Some(volume) = &mut self.volume {
            // From now on, the driver starts agents.
            volume.succession.adopts = false;
        }
        Ok(())
    }

    /// Checks that agents run that can go on with this driver. Otherwise, none runs after that.
    fn check_adopted(&mut self) -> Result<()> {
        if self.volume.as_ref().is_some_and(|volume| volume.succession.only_stops) {
            self.stop_leftovers();
            return Err(Fault::new(Errno::ESRCH, "the agents of the volume are stopped"));
        }
        match self.record.nodes.is_empty() {
            true => Err(Fault::new(Errno::ESRCH, "no agent of the volume runs any more")),
            false => Ok(()),
        }
    }

    /// Connects the agents that were started to each other. `added` are the nodes that were added to those with which the job began.
    fn join(&mut self, nodes: &[NodeInfo], added: &[NodeInfo], deadline: Duration) -> Result<()> {
        self.await_old_leases();
        // The addresses of nodes that were added are those of new processes.
        let map = self.first_map(nodes)?.map(|map| self.without_lost(map.with_arrived(added.to_vec())));
        self.record.map.clone_from(&map);
        self.write_record()?;
        self.await_kept(deadline)?;
        let join = self.ask(&AgentRequest::Join { nodes: self.founders.clone(), map }, None);
        for (node, reply) in self.await_start(join, deadline, "connect to the others")?.answers {
            if let AgentReply::Joined { damage } = reply {
                let messages =
                    damage.iter().map(|what| format!("the journal of node {node} is damaged: {what}"));
                self.damage.extend(messages);
            }
        }
        Ok(())
    }

    fn start_agents(&mut self) -> Result<()> {
        let addresses = listen_addresses(&self.record.plan.nodes)?;
        let mut waiting = Gather::default();
        for (node, address) in (0_u32..).zip(addresses) {
            if self.record.gone.contains(&node) {
                self.links.push(AgentLink::gone(node));
                self.lost.insert(node, LEFT.to_owned());
                self.left.insert(node, Undrained::default());
                continue;
            }
            let start = self.node_start(node, address, self.creates_volume());
            self.links.push(AgentLink::start(&self.record.plan, &start, self.sender.clone())?);
            waiting.waiting.insert(node);
        }
        self.gathers.insert(START_ID, waiting);
        Ok(())
    }

    /// The first line to the agent of a node, which listens at an address. The store of a volume can be new.
    pub(super) fn node_start(&self, node: u32, address: IpAddr, is_new_store: bool) -> NodeStart {
        let plan = &self.record.plan;
        let spec = &plan.nodes[node as usize];
        let same_host = plan.nodes.iter().filter(|other| other.host == spec.host && other.device);
        let device = || DeviceStart { dir: plan.device_dir(node), ram: plan.is_ram() };
        NodeStart {
            start: AgentStart {
                version: CONTROL_VERSION,
                job: plan.job.clone(),
                node: NodeId(node),
                mode: self.mode,
                volume: plan.volume.as_ref().map(|volume| volume.name.as_str().to_owned()),
                secret: self.secret.clone(),
                base_dir: plan.base_dir.clone(),
                listen: SocketAddr::new(address, 0).to_string(),
                fabric: plan.fabric,
                connections: plan.connections,
                no_peer_reads: plan.no_peer_reads,
                coherent_mmap: plan.coherent_mmap,
                cores: plan.cores.clone(),
                replicas: plan.replicas,
                device: spec.device.then(device),
                capacity: [0; 3],
                memory: plan.memory,
                region_memory: 0,
                shared_dir: plan.shared_dir.clone(),
                aggregate: plan.aggregate,
                records_changes: plan.mirror.is_some(),
                damage: Vec::new(),
            },
            record: if spec.is_here() { self.record.clone() } else { self.record.seen_from_elsewhere() },
            is_new_store,
            only_running: self.adopts(),
            term: None,
            driver_host: host_name(),
            sharers: same_host.count() as u32,
            grace_ms: plan.grace_s.saturating_mul(1000),
            log_level: std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned()),
            driver_is_here: spec.is_here(),
        }
    }

    /// Returns the faults of the start of some nodes, by host.
    pub(super) fn start_faults(&self, id: GatherId, concerns: impl Fn(u32) -> bool) -> Vec<String> {
        let answers = self.gather(id).map(|gather| &gather.answers);
        let host = |node: u32| self.record.plan.nodes[node as usize].host.as_str();
        let failed = |(&node, reply): (&u32, &AgentReply)| match reply {
            AgentReply::Failed(fault) => Some((node, fault.to_string())),
            _ => None,
        };
        let mut faults: BTreeMap<u32, String> = answers.into_iter().flatten().filter_map(failed).collect();
        // An agent may also exit after a good reply.
        for (&node, how) in self.lost.iter().filter(|(node, _)| concerns(**node)) {
            faults.entry(node).or_insert_with(|| format!("its agent exited: {how}"));
        }
        // Merge nodes with the same fault, whose paths differ by the number of the node.
        let mut merged: Vec<(String, &str, Vec<String>)> = Vec::new();
        for (node, why) in faults {
            let of_any = why.replace(&format!("/node-{node}/"), "/node-K/");
            match merged.iter_mut().find(|(known, on, _)| *known == of_any && *on == host(node)) {
                Some((_, _, nodes)) => nodes.push(node.to_string()),
                None => merged.push((of_any, host(node), vec![node.to_string()])),
            }
        }
        let line = |(why, host, nodes): (String, &str, Vec<String>)| match nodes.as_slice() {
            [node] => {
                format!("node {node} on {host}: {}", why.replace("/node-K/", &format!("/node-{node}/")))
            }
            nodes => format!("nodes {} on {host}: {why}", nodes.join(", ")),
        };
        merged.into_iter().map(line).collect()
    }

    /// Waits until all agents have replied without fault. If one has failed, waits [`FAULTS_TIME`] for the faults of others, or goes on
    /// without it.
    fn await_start(&mut self, id: GatherId, deadline: Duration, what: &str) -> Result<Gather> {
        let mut faults_deadline = None;
        loop {
            if self.go_on_without_failed(id, monotonic() >= deadline) {
                return Ok(self.take_gather(id));
            }
            let faults = self.start_faults(id, |node| !self.record.gone.contains(&node));
            if !faults.is_empty() && !self.may_start_without(|node| self.has_failed_to_start(id, node)) {
                let until = *faults_deadline.get_or_insert_with(|| deadline.min(monotonic() + FAULTS_TIME));
                if self.is_gathered(id) || monotonic() >= until {
                    return Err(Fault::new(Errno::EHOSTDOWN, faults.join("; ")));
                }
            } else if self.is_gathered(id) {
                return Ok(self.take_gather(id));
            }
            match self.next(Some(faults_deadline.unwrap_or(deadline))) {
                Notice::TimedOut if faults_deadline.is_some() => {}
                Notice::TimedOut if self.go_on_without_failed(id, true) => return Ok(self.take_gather(id)),
                Notice::TimedOut => {
                    let late: Vec<_> = self.gather(id).into_iter().flat_map(|g| &g.waiting).collect();
                    let limit = self.record.plan.start_limit_s;
                    let message = format!("nodes {late:?} did not {what} within {limit} s (key start-limit)");
                    return Err(Fault::new(Errno::ETIMEDOUT, message));
                }
                Notice::Signal(arrived) => return Err(interrupted(arrived)),
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                Notice::AgentLost(_)
                | Notice::Gathered
                | Notice::AgentEnded
                | Notice::Progress(_)
                | Notice::CommandEnded(_)
                | Notice::Mirrored
                | Notice::Superseded(_)
                | Notice::Down { .. } => {}
            }
        }
    }

    /// Gives the nodes up that have failed, or that have not replied in time, if a volume can start without them. Returns true if all
    /// others have replied.
    fn go_on_without_failed(&mut self, id: GatherId, is_late: bool) -> bool {
        let Some(gather) = self.gather(id) else { return false };
        let has_failed =
            |node: u32| self.has_failed_to_start(id, node) || is_late && gather.waiting.contains(&node);
        let failed = (0..self.links.len() as u32).filter(|node| has_failed(*node));
        let failed: Vec<_> = failed.filter(|node| !self.record.gone.contains(node)).collect();
        let waits = gather.waiting.iter().any(|node| !has_failed(*node));
        if failed.is_empty() || waits || !self.may_start_without(has_failed) {
            return false;
        }
        for node in failed {
            let answer = self.gathers.get_mut(&id).and_then(|gather| {
                gather.waiting.remove(&node);
                gather.answers.remove(&node)
            });
            let has_ended = matches!(&answer, Some(AgentReply::Failed(fault)) if fault.errno == Errno::ESRCH);
            if let Some(volume) = self.volume.as_mut().filter(|volume| volume.succession.adopts && !has_ended)
            {
                volume.succession.reconnect(node);
            }
            let how = match answer {
                Some(AgentReply::Failed(fault)) => fault.to_string(),
                _ => self.lost.get(&node).cloned().unwrap_or_else(|| "it did not reply in time".to_owned()),
            };
            if self.record.map.as_ref().is_some_and(|map| !map.excludes(NodeId(node))) {
                let host = &self.record.plan.nodes[node as usize].host;
                crate::report::say(format_args!("the volume starts without node {node} on {host}: {how}"));
            }
            self.lost.insert(node, how);
            let link = &mut self.links[node as usize];
            link.hang_up();
            link.kill();
        }
        true
    }

    fn has_failed_to_start(&self, id: GatherId, node: u32) -> bool {
        let answer = self.gather(id).and_then(|gather| gather.answers.get(&node));
        self.lost.contains_key(&node) || matches!(answer, Some(AgentReply::Failed(_)))
    }

    /// The next map, if a volume starts without some nodes: it excludes them. No agent has a lease yet.
    fn without_lost(&self, map: HomeMap) -> HomeMap {
        let is_there = |node: &&u32| !map.excludes(NodeId(**node));
        let lost: Vec<_> = self.lost.keys().filter(is_there).map(|node| NodeId(*node)).collect();
        lost.into_iter().fold(map, |map, node| map.excluding(node))
    }

    /// Waits until the nodes that the map of a failed job excludes are readmitted, as some homes may be on them only.
    fn await_readmission(&mut self, deadline: Duration) -> Result<()> {
        let may_return = |driver: &Self, node: u32| {
            driver.why_excluded(node).is_some() && !driver.lost.contains_key(&node)
        };
        while self.links.iter().any(|link| may_return(self, link.node())) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => return Ok(()),
                Notice::Signal(arrived) => return Err(interrupted(arrived)),
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the agents' records, and returns the node list that every agent needs.
    fn collect_nodes(&mut self, ready: Gather) -> Result<Vec<NodeInfo>> {
        self.record.nodes.clear();
        let absent: Vec<_> = self.lost.keys().map(|node| self.node_info(*node, String::new())).collect();
        let mut nodes = self.take_ready(ready)?;
        nodes.extend(absent);
        nodes.sort_by_key(|info| info.id);
        Ok(nodes)
    }

    /// Stores the records of agents that are ready, and returns their nodes.
    pub(super) fn take_ready(&mut self, ready: Gather) -> Result<Vec<NodeInfo>> {
        let mut nodes = Vec::new();
        for (node, reply) in ready.answers {
            let AgentReply::Ready { node: record, address, keeper, running } = reply else {
                return Err(Fault::new(Errno::EPROTO, format!("node {node} sent an unexpected reply")));
            };
            match running {
                Some(secret) if self.adopts() => self.secret = secret,
                Some(_) => {
                    return Err(Fault::new(Errno::EBUSY, format!("the agent of node {node} runs already")));
                }
                None => {}
            }
            keeper.into_iter().for_each(|keeper| self.take_store(keeper));
            nodes.push(self.node_info(node, address));
            self.record.nodes.retain(|other| other.node != record.node);
            self.record.nodes.push(record);
        }
        self.record.nodes.sort_by_key(|record| record.node);
        Ok(nodes)
    }

    pub(super) fn node_info(&self, node: u32, address: String) -> NodeInfo {
        let spec = &self.record.plan.nodes[node as usize];
        let (host, group, device) = (spec.host.clone(), spec.group, spec.device);
        NodeInfo { id: NodeId(node), host, address, group, device }
    }
}
