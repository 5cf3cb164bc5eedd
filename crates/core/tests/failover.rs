//! Exhaustive model of the replicas of one home: replication of its log, leases, failover and restarts
//! (`docs/decisions/0093-replicas-of-homes.md`).
//!
//! A search visits all states that a few writes, crashes and suspicions can lead to, with messages delayed, lost and reordered at will. In each
//! state, a read at any node that may serve must show all writes that a client has seen. Variants of the protocol that lack
//! one of its rules must violate this.

use std::collections::{BTreeSet, HashSet, VecDeque};

type Node = usize;

const NODES: usize = 3;

/// A rule that a variant of the protocol lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacking {
    Nothing,
    /// A write is acknowledged when all backups have its record.
    AckOfBackups,
    /// A read waits until the backups have all records before it.
    BarrierAtReads,
    /// A primary serves only while it holds a lease, and is replaced after its end.
    Lease,
    /// A backup confirms a record only if it has no other one in its place, from the old primary.
    Comparison,
    /// A restarted node, which may have lost records, is no replica any more.
    Incarnations,
}

/// A process of a node. A restart begins the next incarnation.
type Replica = (Node, u8);

/// The home map, for one home. The primary is the first replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Map {
    epoch: u8,
    replicas: Vec<Replica>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Agent {
    up: bool,
    incarnation: u8,
    /// Records of an older epoch are refused.
    map: Map,
    log: Vec<u8>,
    /// Its own view of its lease as primary.
    lease: bool,
    /// Length of the log that each backup has confirmed in the epoch of `map`.
    confirmed: [usize; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// The record at an index of the primary's log.
    Record { epoch: u8, from: Node, to: Replica, index: usize, value: u8 },
    /// The length of a backup's log.
    Confirm { epoch: u8, from: Node, to: Node, length: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    agents: [Agent; NODES],
    map: Map,
    /// Whether the primary may hold a lease, as the authority knows.
    leased: bool,
    messages: BTreeSet<Message>,
    /// Values that the client has begun to write, and those that it has seen: acknowledged, or read.
    begun: u8,
    seen: BTreeSet<u8>,
    crashes: u8,
    suspicions: u8,
}

/// How many of each event a search allows.
#[derive(Clone, Copy)]
struct Bounds {
    replicas: usize,
    writes: u8,
    crashes: u8,
    suspicions: u8,
}

impl State {
    fn new(bounds: Bounds) -> Self {
        let map = Map { epoch: 1, replicas: (0..bounds.replicas).map(|node| (node, 0)).collect() };
        let agent = |node| Agent {
            up: true,
            incarnation: 0,
            map: map.clone(),
            log: Vec::new(),
            lease: node == 0,
            confirmed: [0; NODES],
        };
        Self {
            agents: [agent(0), agent(1), agent(2)],
            map: map.clone(),
            leased: true,
            messages: BTreeSet::new(),
            begun: 0,
            seen: BTreeSet::new(),
            crashes: 0,
            suspicions: 0,
        }
    }

    fn is_live(&self, (node, incarnation): Replica) -> bool {
        self.agents[node].up && self.agents[node].incarnation == incarnation
    }

    /// The backups of a node that serves, as it knows them; `None` if it does not serve.
    fn backups(&self, node: Node, lacking: Lacking) -> Option<Vec<Replica>> {
        let agent = &self.agents[node];
        let is_primary = agent.map.replicas.first() == Some(&(node, agent.incarnation));
        let serves = agent.up && is_primary && (agent.lease || lacking == Lacking::Lease);
        serves.then(|| agent.map.replicas[1..].to_vec())
    }

    /// The length of the log of a node that all its backups have.
    fn replicated(&self, node: Node, backups: &[Replica]) -> usize {
        let confirmed = backups.iter().map(|(backup, _)| self.agents[node].confirmed[*backup]);
        confirmed.min().unwrap_or(self.agents[node].log.len())
    }

    /// Drops messages that no node will accept any more.
    fn without_refused(mut self) -> Self {
        let mut messages = std::mem::take(&mut self.messages);
        messages.retain(|message| match *message {
            Message::Record { epoch, to, .. } => self.is_live(to) && epoch >= self.agents[to.0].map.epoch,
            Message::Confirm { epoch, from, to, length } => {
                let agent = &self.agents[to];
                agent.up && agent.map.epoch == epoch && agent.confirmed[from] < length
            }
        });
        Self { messages, ..self }
    }

    /// All states that follow.
    fn next(&self, bounds: Bounds, lacking: Lacking) -> Vec<Self> {
        let mut all = Vec::new();
        for node in 0..NODES {
            self.serve(node, bounds, lacking, &mut all);
            self.keep_up(node, &mut all);
            self.fail(node, bounds, lacking, &mut all);
        }
        self.deliver(lacking, &mut all);
        self.decide(lacking, &mut all);
        let within = |state: &Self| state.suspicions <= bounds.suspicions;
        all.into_iter().filter(within).map(Self::without_refused).collect()
    }

    fn serve(&self, node: Node, bounds: Bounds, lacking: Lacking, all: &mut Vec<Self>) {
        let Some(backups) = self.backups(node, lacking) else { return };
        let log = &self.agents[node].log;
        let replicated = match lacking {
            Lacking::AckOfBackups => log.len(),
            _ => self.replicated(node, &backups),
        };
        // The client repeats a write until it is acknowledged. A primary knows values that it has already.
        for value in 0..(self.begun + 1).min(bounds.writes) {
            match log.iter().position(|known| *known == value) {
                None if !self.seen.contains(&value) => {
                    let mut next = self.clone();
                    next.begun = self.begun.max(value + 1);
                    next.agents[node].log.push(value);
                    all.push(next);
                }
                Some(index) if index < replicated && !self.seen.contains(&value) => {
                    let mut next = self.clone();
                    next.seen.insert(value);
                    all.push(next);
                }
                _ => {}
            }
        }
        if replicated == log.len() || lacking == Lacking::BarrierAtReads {
            let mut next = self.clone();
            next.seen.extend(log);
            all.push(next);
        }
        for to in backups {
            let epoch = self.agents[node].map.epoch;
            let index = self.agents[node].confirmed[to.0];
            let Some(&value) = log.get(index) else { continue };
            let mut next = self.clone();
            next.messages.insert(Message::Record { epoch, from: node, to, index, value });
            all.push(next);
        }
    }

    /// A node loses its lease, or gets the current map or a lease.
    fn keep_up(&self, node: Node, all: &mut Vec<Self>) {
        let agent = &self.agents[node];
        if agent.lease {
            // Its messages to the authority are late, or it is stopped.
            let mut next = self.clone();
            next.agents[node].lease = false;
            all.push(next);
        }
        if agent.up && agent.map.epoch < self.map.epoch {
            let mut next = self.clone();
            let agent = &mut next.agents[node];
            let was_primary = agent.map.replicas.first();
            // The same primary keeps its lease, but has to hear of its backups again.
            agent.lease &= was_primary == self.map.replicas.first();
            agent.map = self.map.clone();
            agent.confirmed = [0; NODES];
            all.push(next);
        }
        let is_primary = self.map.replicas.first() == Some(&(node, agent.incarnation));
        if agent.up && agent.map == self.map && is_primary && !agent.lease {
            let mut next = self.clone();
            next.agents[node].lease = true;
            next.leased = true;
            all.push(next);
        }
    }

    fn fail(&self, node: Node, bounds: Bounds, lacking: Lacking, all: &mut Vec<Self>) {
        let agent = &self.agents[node];
        let is_listed = self.map.replicas.contains(&(node, agent.incarnation));
        if agent.up && is_listed && self.crashes < bounds.crashes {
            let mut next = self.clone();
            next.crashes += 1;
            next.agents[node].up = false;
            next.agents[node].lease = false;
            all.push(next);
        }
        if !agent.up {
            // A restarted agent may have lost records. In a new incarnation, nothing that it has counts.
            for length in 0..=if lacking == Lacking::Incarnations { agent.log.len() } else { 0 } {
                let mut next = self.clone();
                let agent = &mut next.agents[node];
                (agent.up, agent.incarnation) = (true, agent.incarnation + 1);
                if lacking == Lacking::Incarnations {
                    agent.incarnation -= 1;
                }
                agent.log.truncate(length);
                agent.confirmed = [0; NODES];
                agent.map = Map { epoch: 0, replicas: Vec::new() };
                all.push(next);
            }
        }
    }

    fn deliver(&self, lacking: Lacking, all: &mut Vec<Self>) {
        for message in &self.messages {
            let mut next = self.clone();
            next.messages.remove(message);
            match *message {
                Message::Record { epoch, from, to, index, value } => {
                    let agent = &mut next.agents[to.0];
                    if index > agent.log.len() {
                        continue;
                    }
                    if index == agent.log.len() {
                        agent.log.push(value);
                    }
                    if agent.log[index] == value || lacking == Lacking::Comparison {
                        let length = index + 1;
                        next.messages.insert(Message::Confirm { epoch, from: to.0, to: from, length });
                    }
                }
                Message::Confirm { from, to, length, .. } => {
                    next.agents[to].confirmed[from] = length;
                }
            }
            all.push(next);
        }
    }

    /// What the authority does.
    fn decide(&self, lacking: Lacking, all: &mut Vec<Self>) {
        let Some(&primary) = self.map.replicas.first() else { return };
        let holds_lease = self.is_live(primary) && self.agents[primary.0].lease;
        if self.leased && (!holds_lease || lacking == Lacking::Lease) {
            let mut next = self.clone();
            next.leased = false;
            next.suspicions += u8::from(self.is_live(primary));
            all.push(next);
        }
        // The primary reports a backup, which it does not reach or which has restarted.
        let is_current = self.is_live(primary) && self.agents[primary.0].map == self.map;
        if is_current && self.leased {
            for &backup in &self.map.replicas[1..] {
                let mut next = self.clone();
                next.suspicions += u8::from(self.is_live(backup));
                next.map.epoch += 1;
                next.map.replicas.retain(|other| *other != backup);
                all.push(next);
            }
        }
        if self.leased {
            return;
        }
        // Another replica becomes the primary. The old one is no replica any more: it may have records that the others lack.
        for &replica in self.map.replicas[1..].iter().filter(|replica| self.is_live(**replica)) {
            let others = self.map.replicas[1..].iter().copied().filter(|other| *other != replica);
            let mut next = self.clone();
            let replicas = std::iter::once(replica).chain(others).collect();
            next.map = Map { epoch: self.map.epoch + 1, replicas };
            next.leased = true;
            all.push(next);
        }
    }

    /// A value that a client has seen and that a node which serves lacks.
    fn lost(&self, lacking: Lacking) -> Option<(Node, u8)> {
        let serving = (0..NODES).filter(|&node| self.backups(node, lacking).is_some());
        serving
            .flat_map(|node| self.seen.iter().map(move |value| (node, *value)))
            .find(|(node, value)| !self.agents[*node].log.contains(value))
    }
}

/// Searches all states. Returns their number, or the steps to a state in which a value is lost.
fn search(bounds: Bounds, lacking: Lacking) -> Result<usize, String> {
    let first = State::new(bounds);
    let mut known = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    while let Some(state) = queue.pop_front() {
        for next in state.next(bounds, lacking) {
            if known.contains(&next) {
                continue;
            }
            if let Some((node, value)) = next.lost(lacking) {
                return Err(format!("node {node} lacks {value}: {next:#?}"));
            }
            known.insert(next.clone());
            queue.push_back(next);
        }
    }
    Ok(known.len())
}

const TWO: Bounds = Bounds { replicas: 2, writes: 2, crashes: 1, suspicions: 1 };
const THREE: Bounds = Bounds { replicas: 3, writes: 1, crashes: 1, suspicions: 0 };

#[test]
fn no_write_that_a_client_has_seen_is_lost() {
    for bounds in [TWO, THREE] {
        let states = search(bounds, Lacking::Nothing).expect("nothing is lost");
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn each_rule_of_the_protocol_is_needed() {
    for (lacking, bounds) in [
        (Lacking::AckOfBackups, TWO),
        (Lacking::BarrierAtReads, TWO),
        (Lacking::Lease, TWO),
        (Lacking::Incarnations, TWO),
        (Lacking::Comparison, Bounds { writes: 2, crashes: 2, ..THREE }),
    ] {
        assert!(search(bounds, lacking).is_err(), "{lacking:?}");
    }
}
