//! The authority of the home map of a job with replicas: grants the leases of the nodes, and changes the map when nodes fail.
//!
//! It is a state machine without clock and without I/O. Its owner sends [`Authority::message`] to each node in intervals of
//! [`MAP_LEASE_INTERVAL`] and after each change of the map, and calls [`Authority::tick`] as often. A node that loses homes has no lease at
//! that time: it has failed, it has answered that it has given its lease up, or the lease has ended by the clock of the authority, which counts
//! it longer than the node.
//!
//! Some decisions are due before the next interval: see [`Authority::decision_due`] and [`Authority::is_round_due`].

mod balance;
mod member;
mod quorum;
mod repair;

use crate::control::{LeaseAnswer, LeaseMessage};
use balance::Balance;
use member::{Contact, Member, Right};
use quorum::Quorum;
pub use quorum::TAKEOVER_TIME;
use repair::Repair;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::limits::{MAP_LEASE, MAP_LEASE_INTERVAL};
use tameike_core::{HomeId, HomeMap, NodeId};

/// Time between ticks beyond which the authority itself was stopped or short of processor time: the nodes may have answered meanwhile.
const TICK_GAP_MAX: Duration = Duration::from_millis(750);
/// Time without an answer after which a node may have failed: it neither counts as unreachable by others, nor others by it.
const SUSPECT_TIME: Duration = Duration::from_millis(750);

/// Time from the first report about a node that others may not reach until the authority decides about it. Agents notice the same failure within
/// a quarter of a second, the interval of their checks, and are asked at each decision meanwhile.
const SETTLE_TIME: Duration = Duration::from_millis(350);

const _: () = assert!(TICK_GAP_MAX.as_millis() > MAP_LEASE_INTERVAL.as_millis());

/// Time between ticks, at least: answers that many nodes send at the same time lead to one decision.
const DECISION_PAUSE: Duration = Duration::from_millis(50);

/// Why a node is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its agent has ended, or the connection to it.
    Failed,
    /// It has left the job, which has no home on it.
    Left,
    /// It does not answer.
    Silent,
    /// It and other nodes cannot reach each other.
    Unreachable,
    /// Its store accepts no more changes.
    StoreFailed,
}

/// A change of the home map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Other nodes serve the homes of the node from now on, as far as they have copies.
    Excluded(NodeId, Cause),
    /// The node answers again, or for the first time. It has no homes yet.
    Readmitted(NodeId),
    /// The node is no backup of the home any more, because its copy is of no use. Or the home is not copied to it any more.
    Dropped(HomeId, NodeId),
    /// The home lacks a replica, and is being copied to the node.
    Copying(HomeId, NodeId),
    /// The node is a backup of the home from now on.
    Copied(HomeId, NodeId),
    /// The first node has no copy of the home any more. The second one does, and serves the home if the first one did.
    Moved(HomeId, NodeId, NodeId),
}

/// One of two nodes has reported the other as unreachable.
#[derive(Clone, Copy)]
struct Cut {
    /// Time of the first report.
    since: Duration,
    /// The last messages to both at that time.
    asked: [u64; 2],
}

/// The authority of the home map of one job. All times are those of one monotonic clock.
pub struct Authority {
    map: HomeMap,
    members: BTreeMap<NodeId, Member>,
    /// Nodes whose leases are revoked, so that they can be excluded: their stores have failed, or they and others do not reach each other.
    condemned: BTreeSet<NodeId>,
    /// Pairs of nodes that do not reach each other, the lower number first.
    cuts: BTreeMap<(NodeId, NodeId), Cut>,
    last_tick: Duration,
    /// Nodes of these pairs.
    cut: BTreeSet<NodeId>,
    /// Answers since the last tick may change the map.
    has_news: bool,
    is_round_due: bool,
    repair: Repair,
    balance: Balance,
    quorum: Quorum,
}

impl Authority {
    /// An authority that begins with a map. `nodes` are all nodes of the job, also those that serve no homes.
    pub fn new(map: HomeMap, nodes: impl IntoIterator<Item = NodeId>, now: Duration) -> Self {
        let member = |node| {
            let excluded_in = map.excludes(node).then_some(map.epoch);
            (node, Member::new(excluded_in))
        };
        let members = nodes.into_iter().map(member).collect();
        let (condemned, cuts, cut, has_news, is_round_due, repair, balance, quorum) = Default::default();
        Self {
            map,
            members,
            condemned,
            cuts,
            cut,
            last_tick: now,
            has_news,
            is_round_due,
            repair,
            balance,
            quorum,
        }
    }

    /// The current map.
    pub fn map(&self) -> &HomeMap {
        &self.map
    }

    /// The next message to a node, which is sent now. `None` if the node owes answers to several messages, so that messages to a stopped
    /// agent do not fill its pipe, or if it has ended.
    pub fn message(&mut self, node: NodeId, now: Duration) -> Option<LeaseMessage> {
        let right = self.right_now(node, now);
        self.members.get_mut(&node)?.message(&self.map, right, now)
    }

    /// Takes the answer of a node, which has arrived now. Returns true if the next message to the node is urgent: it brings its first lease,
    /// or a map that the node does not have.
    pub fn answered(&mut self, node: NodeId, answer: LeaseAnswer, now: Duration) -> bool {
        let Some(member) = self.members.get_mut(&node) else { return false };
        // It may be the answer that a decision about a cut waits for.
        self.has_news |= member.answered(answer, now) || self.cut.contains(&node);
        let right = self.right_now(node, now);
        let Some(member) = self.members.get(&node) else { return false };
        member.is_urgent(self.map.epoch, right, now)
    }

    /// The time at which a tick is due before the next interval: because of answers since the last one, or of reports that may not be complete.
    /// `None` if there is no reason.
    pub fn decision_due(&self) -> Option<Duration> {
        (self.has_news || self.is_settling()).then_some(self.last_tick + DECISION_PAUSE)
    }

    /// Whether nodes may have more to report about those that they do not reach, as of the last tick.
    fn is_settling(&self) -> bool {
        self.cuts.values().any(|cut| self.last_tick < cut.since + SETTLE_TIME)
    }

    /// Whether the last tick was one after which messages to all nodes are due at once.
    pub fn is_round_due(&self) -> bool {
        self.is_round_due
    }

    /// Notes that the process of the node's agent has certainly ended, and all its connections with it. Its lease is over.
    pub fn ended(&mut self, node: NodeId) {
        if let Some(member) = self.members.get_mut(&node) {
            member.contact = Contact::Ended;
        }
    }

    /// Notes that the connection to the node's agent is lost. The agent may still run until its lease is over.
    pub fn hung_up(&mut self, node: NodeId) {
        if let Some(member) = self.members.get_mut(&node)
            && member.contact == Contact::Open
        {
            member.contact = Contact::HungUp;
        }
    }

    /// Notes that there is a new connection to the node's agent, which was not restarted.
    pub fn connected(&mut self, node: NodeId) {
        if let Some(member) = self.members.get_mut(&node) {
            member.reconnect();
        }
    }

    /// Decides about the map. Returns its changes, in order; if there are any, the new map goes to all nodes at once.
    #[must_use]
    pub fn tick(&mut self, now: Duration) -> Vec<MapChange> {
        if now.saturating_sub(self.last_tick) > TICK_GAP_MAX {
            self.members.values_mut().for_each(|member| member.wait_again(now));
        }
        self.last_tick = now;
        let mut changes = Vec::new();
        self.drop_failed_copies(now, &mut changes);
        self.exclude(Cause::Failed, now, &mut changes);
        self.exclude(Cause::Silent, now, &mut changes);
        self.note_cuts(now);
        let condemned = self.condemn(now);
        let is_new = !condemned.is_subset(&self.condemned);
        self.condemned = condemned;
        self.exclude(Cause::StoreFailed, now, &mut changes);
        self.exclude(Cause::Unreachable, now, &mut changes);
        self.readmit(now, &mut changes);
        self.repair(now, &mut changes);
        let handed_over = self.balance.handing_over();
        self.balance(now, &mut changes);
        let hands_over = self.balance.handing_over() != handed_over;
        self.has_news = false;
        self.is_round_due = self.is_settling() || is_new || hands_over || !changes.is_empty();
        changes
    }

    /// What a message to a node does to its lease now.
    fn right_now(&self, node: NodeId, now: Duration) -> Right {
        match self.right(node) {
            Right::Held if !self.has_quorum(now) => Right::Waiting,
            right => right,
        }
    }

    /// What messages to a node do to its lease, as long as the authority hears most keepers.
    fn right(&self, node: NodeId) -> Right {
        match self.map.excludes(node) {
            true => Right::Lost,
            false if self.condemned.contains(&node) || self.balance.hands_over(node) => Right::Revoked,
            false => Right::Held,
        }
    }

    /// Drops backups with useless copies, as the node that is the primary now has reported.
    fn drop_failed_copies(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        for (&node, member) in &mut self.members {
            for (home, backup) in std::mem::take(&mut member.failed_copies) {
                let serves = u64::from(home.0) < self.map.count() && self.map.primary(home) == node;
                let is_copy = u64::from(home.0) < self.map.count() && self.map.is_on(home, backup);
                if serves && is_copy && backup != node {
                    self.repair.failed(home, backup, now);
                    self.map = self.map.without_backup(home, backup);
                    changes.push(MapChange::Dropped(home, backup));
                }
            }
        }
    }

    /// Excludes the nodes to which a cause applies and whose leases are over, but never the last node. Of several, those with the highest
    /// numbers are first, because node 0 runs the command of a job.
    fn exclude(&mut self, cause: Cause, now: Duration, changes: &mut Vec<MapChange>) {
        let mut left = self.members.keys().filter(|node| !self.map.excludes(**node)).count();
        for (&node, member) in self.members.iter_mut().rev() {
            let applies = match cause {
                Cause::Failed | Cause::Left => member.contact != Contact::Open,
                Cause::Silent => member.is_silent(MAP_LEASE, now),
                Cause::Unreachable => self.condemned.contains(&node),
                Cause::StoreFailed => self.condemned.contains(&node) && member.store_failed,
            };
            if left > 1 && applies && !self.map.excludes(node) && !member.has_lease(now) {
                let copies = self.map.homes().filter(|home| self.map.is_on(*home, node));
                self.repair.excluded(copies, node);
                self.map = self.map.excluding(node);
                member.excluded_in = Some(self.map.epoch);
                self.condemned.remove(&node);
                let has_left = cause == Cause::Failed && self.balance.is_leaving(node);
                changes.push(MapChange::Excluded(node, if has_left { Cause::Left } else { cause }));
                left -= 1;
            }
        }
    }

    /// The nodes that count when the authority chooses those to condemn. A node that owes an answer for long does not: either it answers, or it
    /// is excluded soon, and not its peer.
    fn counting(&self, now: Duration) -> impl Iterator<Item = (NodeId, &Member)> {
        let counts = move |(node, member): &(NodeId, &Member)| {
            !self.map.excludes(*node) && member.is_up() && !member.is_silent(SUSPECT_TIME, now)
        };
        self.members.iter().map(|(node, member)| (*node, member)).filter(counts)
    }

    /// Notes which nodes do not reach each other.
    fn note_cuts(&mut self, now: Duration) {
        let counting: BTreeMap<_, _> = self.counting(now).collect();
        let mut cuts = BTreeMap::new();
        for (&node, member) in &counting {
            for &other in member.unreachable.iter().filter(|other| **other != node) {
                if let Some(peer) = counting.get(&other) {
                    let (asked, peer_asked) = (member.asked(), peer.asked());
                    let (pair, asked) = match node < other {
                        true => ((node, other), [asked, peer_asked]),
                        false => ((other, node), [peer_asked, asked]),
                    };
                    let cut = self.cuts.get(&pair).copied().unwrap_or(Cut { since: now, asked });
                    cuts.insert(pair, cut);
                }
            }
        }
        self.cut = cuts.keys().flat_map(|(one, other)| [*one, *other]).collect();
        self.cuts = cuts;
    }

    /// Chooses the nodes to condemn, but never all that count: those whose stores have failed, and those without which all others reach each
    /// other.
    fn condemn(&self, now: Duration) -> BTreeSet<NodeId> {
        let mut left: BTreeMap<_, _> = self.counting(now).collect();
        let failed: Vec<_> = left.iter().filter(|(_, member)| member.store_failed).collect();
        let mut condemned: BTreeSet<_> = failed.into_iter().map(|(node, _)| *node).collect();
        if condemned.len() == left.len() {
            condemned.pop_first();
        }
        left.retain(|node, _| !condemned.contains(node));
        condemned.extend(self.cut_off(&left, now));
        condemned
    }

    /// Chooses nodes without which all of `left` reach each other: again and again the one that most others do not reach, of several the one
    /// with the highest number. Both nodes of a pair must have answered since one of them has reported the other: a node that has just failed
    /// does not, and its peers stay. As long as reports may be missing, only a node that no other one reaches is chosen: of the pair in the
    /// first report, either node may be the one that the others do not reach.
    fn cut_off(&self, left: &BTreeMap<NodeId, &Member>, now: Duration) -> Vec<NodeId> {
        let mut peers: BTreeMap<NodeId, BTreeMap<NodeId, Duration>> = BTreeMap::new();
        for (&(one, other), cut) in &self.cuts {
            let answers =
                |node, asked| left.get(&node).is_some_and(|member| member.has_answered_after(asked));
            if answers(one, cut.asked[0]) && answers(other, cut.asked[1]) {
                peers.entry(one).or_default().insert(other, cut.since);
                peers.entry(other).or_default().insert(one, cut.since);
            }
        }
        let mut chosen = Vec::new();
        while let Some((&node, broken)) = peers.iter().max_by_key(|(node, broken)| (broken.len(), **node))
            && !broken.is_empty()
        {
            let is_settled = broken.values().any(|since| now >= *since + SETTLE_TIME);
            if !is_settled && chosen.len() + 1 + broken.len() < left.len() {
                break;
            }
            chosen.push(node);
            peers.remove(&node);
            for broken in peers.values_mut() {
                broken.remove(&node);
            }
        }
        chosen
    }

    /// Readmits nodes that have the map in which they were excluded, so that they serve no home of another node, reach all others, and have
    /// stores that accept changes.
    fn readmit(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        let excluded = self.map.excluded().to_vec();
        for node in excluded {
            let Some(member) = self.members.get(&node) else { continue };
            let reaches = |(other, peer): (&NodeId, &Member)| {
                self.map.excludes(*other)
                    || !peer.is_up()
                    || !(peer.unreachable.contains(&node) || member.unreachable.contains(other))
            };
            let has_returned =
                member.has_returned() && !member.is_silent(SUSPECT_TIME, now) && !member.store_failed;
            if has_returned && self.members.iter().all(reaches) {
                self.map = self.map.readmitting(node);
                changes.push(MapChange::Readmitted(node));
            }
        }
    }
}

#[cfg(test)]
mod tests;
