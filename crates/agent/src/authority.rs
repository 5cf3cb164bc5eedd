//! The authority of the home map of a job with replicas: grants the leases of the nodes, and changes the map when nodes fail.
//!
//! It is a state machine without clock and without I/O. Its owner sends [`Authority::message`] to each node in intervals of
//! [`MAP_LEASE_INTERVAL`] and after each change of the map, and calls [`Authority::tick`] as often. A node that loses homes has no lease at
//! that time: it has failed, or its lease has ended by the clock of the authority, which counts it longer than the node.

mod member;
mod repair;

use crate::control::{LeaseAnswer, LeaseMessage};
use member::{Contact, Member};
use repair::Repair;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::limits::{MAP_LEASE, MAP_LEASE_INTERVAL};
use tameike_core::{HomeId, HomeMap, NodeId};

/// Time between ticks beyond which the authority itself was stopped or short of processor time: the nodes may have answered meanwhile.
const TICK_GAP_MAX: Duration = Duration::from_millis(750);
/// Time without an answer after which a node may have failed: it neither counts as unreachable by others, nor others by it.
const SUSPECT_TIME: Duration = Duration::from_millis(750);

const _: () = assert!(TICK_GAP_MAX.as_millis() > MAP_LEASE_INTERVAL.as_millis());
// A node that reports a failed peer may be condemned until the peer is suspect. Its lease lasts longer.
const _: () = assert!(SUSPECT_TIME.as_millis() < MAP_LEASE.as_millis() - MAP_LEASE_INTERVAL.as_millis());

/// Why a node is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its agent has ended, or the connection to it.
    Failed,
    /// It does not answer.
    Silent,
    /// It and other nodes cannot reach each other.
    Unreachable,
}

/// A change of the home map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Other nodes serve the homes of the node from now on, as far as they have copies.
    Excluded(NodeId, Cause),
    /// The node answers again. It gets no homes back.
    Readmitted(NodeId),
    /// The node is no backup of the home any more, because its copy has other records than the primary. Or the home is not copied to it any
    /// more.
    Dropped(HomeId, NodeId),
    /// The home lacks a replica, and is being copied to the node.
    Copying(HomeId, NodeId),
    /// The node is a backup of the home from now on.
    Copied(HomeId, NodeId),
}

/// The authority of the home map of one job. All times are those of one monotonic clock.
pub struct Authority {
    map: HomeMap,
    members: BTreeMap<NodeId, Member>,
    /// Nodes that get no leases, so that they can be excluded: they and others do not reach each other.
    condemned: BTreeSet<NodeId>,
    last_tick: Duration,
    repair: Repair,
}

impl Authority {
    /// An authority that begins with a map. `nodes` are all nodes of the job, also those that serve no homes.
    pub fn new(map: HomeMap, nodes: impl IntoIterator<Item = NodeId>, now: Duration) -> Self {
        let member = |node| {
            let excluded_in = map.excludes(node).then_some(map.epoch);
            (node, Member::new(excluded_in))
        };
        let members = nodes.into_iter().map(member).collect();
        let (condemned, repair) = Default::default();
        Self { map, members, condemned, last_tick: now, repair }
    }

    /// The current map.
    pub fn map(&self) -> &HomeMap {
        &self.map
    }

    /// The next message to a node, which is sent now. `None` if the node owes answers to several messages, so that messages to a stopped
    /// agent do not fill its pipe, or if it has ended.
    pub fn message(&mut self, node: NodeId, now: Duration) -> Option<LeaseMessage> {
        let may_hold = self.may_hold(node);
        self.members.get_mut(&node)?.message(&self.map, may_hold, now)
    }

    /// Takes the answer of a node, which has arrived now. Returns true if the next message to the node is urgent: it brings its first lease,
    /// or a map that the node does not have.
    pub fn answered(&mut self, node: NodeId, answer: LeaseAnswer, now: Duration) -> bool {
        let may_hold = self.may_hold(node);
        let Some(member) = self.members.get_mut(&node) else { return false };
        member.answered(answer, now);
        member.is_urgent(self.map.epoch, may_hold, now)
    }

    /// Notes that the process of the node's agent has certainly ended, and all its connections with it. Its lease is over.
    pub fn ended(&mut self, node: NodeId) {
        if let Some(member) = self.members.get_mut(&node) {
            member.contact = Contact::Ended;
        }
    }

    /// Notes that the connection to the node's agent is lost, and will not come back. The agent may still run until its lease is over.
    pub fn hung_up(&mut self, node: NodeId) {
        if let Some(member) = self.members.get_mut(&node)
            && member.contact == Contact::Open
        {
            member.contact = Contact::HungUp;
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
        self.drop_differing(now, &mut changes);
        self.exclude(Cause::Failed, now, &mut changes);
        self.exclude(Cause::Silent, now, &mut changes);
        self.condemned = self.condemn(now);
        self.exclude(Cause::Unreachable, now, &mut changes);
        self.readmit(now, &mut changes);
        self.repair(now, &mut changes);
        changes
    }

    /// Whether messages to a node may grant it a lease.
    fn may_hold(&self, node: NodeId) -> bool {
        !self.map.excludes(node) && !self.condemned.contains(&node)
    }

    /// Drops backups that have other records than their primary, as the node that is the primary now has reported.
    fn drop_differing(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        for (&node, member) in &mut self.members {
            for (home, backup) in std::mem::take(&mut member.differing) {
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
                Cause::Failed => member.contact != Contact::Open,
                Cause::Silent => member.is_silent(MAP_LEASE, now),
                Cause::Unreachable => self.condemned.contains(&node),
            };
            if left > 1 && applies && !self.map.excludes(node) && !member.has_lease(now) {
                self.map = self.map.excluding(node);
                member.excluded_in = Some(self.map.epoch);
                self.condemned.remove(&node);
                changes.push(MapChange::Excluded(node, cause));
                left -= 1;
            }
        }
    }

    /// Chooses nodes without which all others reach each other: again and again the one that most others do not reach, of several the one
    /// with the highest number. A node that owes an answer for long does not count: either it answers, or it is excluded soon, and not its peer.
    fn condemn(&self, now: Duration) -> BTreeSet<NodeId> {
        let counts = |(node, member): &(&NodeId, &Member)| {
            !self.map.excludes(**node) && member.is_up() && !member.is_silent(SUSPECT_TIME, now)
        };
        let mut peers: BTreeMap<NodeId, BTreeSet<NodeId>> =
            self.members.iter().filter(counts).map(|(node, _)| (*node, BTreeSet::new())).collect();
        for (&node, member) in &self.members {
            for &other in &member.unreachable {
                if node != other && peers.contains_key(&node) && peers.contains_key(&other) {
                    peers.entry(node).or_default().insert(other);
                    peers.entry(other).or_default().insert(node);
                }
            }
        }
        let mut condemned = BTreeSet::new();
        while let Some((&node, broken)) = peers.iter().max_by_key(|(node, broken)| (broken.len(), **node))
            && !broken.is_empty()
        {
            condemned.insert(node);
            peers.remove(&node);
            for broken in peers.values_mut() {
                broken.remove(&node);
            }
        }
        condemned
    }

    /// Readmits nodes that have the map in which they were excluded, so that they serve no home of another node, and reach all others.
    fn readmit(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        let excluded = self.map.excluded().to_vec();
        for node in excluded {
            let Some(member) = self.members.get(&node) else { continue };
            let reaches = |(other, peer): (&NodeId, &Member)| {
                self.map.excludes(*other)
                    || !peer.is_up()
                    || !(peer.unreachable.contains(&node) || member.unreachable.contains(other))
            };
            let has_returned = member.has_returned() && !member.is_silent(SUSPECT_TIME, now);
            if has_returned && self.members.iter().all(reaches) {
                self.map = self.map.readmitting(node);
                changes.push(MapChange::Readmitted(node));
            }
        }
    }
}

#[cfg(test)]
mod tests;
