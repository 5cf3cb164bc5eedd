//! Gives homes that lack a replica to other nodes, which the primaries copy them to.

use super::{Authority, MapChange, Right};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::{HomeId, NodeId, NodeInfo};

/// Time since the last exclusion or readmission after which homes are copied: several nodes may fail together, or be back soon.
const SETTLING_TIME: Duration = Duration::from_secs(3);
/// Time for which a node does not get a home again of which its copy was of no use.
const FAILED_TIME: Duration = Duration::from_secs(30);

/// What repairs need to know.
#[derive(Default)]
pub(super) struct Repair {
    /// Number of replicas that each home shall have; 0 or 1: homes are never copied.
    replicas: usize,
    /// The nodes with a device.
    devices: Vec<NodeInfo>,
    /// When a node was excluded or readmitted last.
    changed: Duration,
    /// Nodes that had copies of homes when they were excluded, and may have most of them still.
    former: BTreeSet<(HomeId, NodeId)>,
    /// Copies that were of no use, with the times of that.
    failed: BTreeMap<(HomeId, NodeId), Duration>,
}

impl Repair {
    /// Notes that the copy of a home on a node is of no use.
    pub(super) fn failed(&mut self, home: HomeId, node: NodeId, now: Duration) {
        self.failed.insert((home, node), now);
    }

    /// Notes that a node is being excluded, which has copies of homes.
    pub(super) fn excluded(&mut self, homes: impl Iterator<Item = HomeId>, node: NodeId) {
        self.former.extend(homes.map(|home| (home, node)));
    }

    /// Whether a copy of a home on a node was of no use lately.
    pub(super) fn has_failed(&self, home: HomeId, node: NodeId) -> bool {
        self.failed.contains_key(&(home, node))
    }

    /// Number of replicas that each home shall have; 0 if homes are never copied.
    pub(super) fn replicas(&self) -> usize {
        self.replicas
    }

    /// The nodes with a device.
    pub(super) fn devices(&self) -> &[NodeInfo] {
        &self.devices
    }

    /// Takes a node of the job into account, in place of an earlier one with its number.
    pub(super) fn add_device(&mut self, node: NodeInfo) {
        self.devices.retain(|other| other.id != node.id);
        self.devices.extend(Some(node).filter(|node| node.device));
    }
}

impl Authority {
    /// Has homes copied that lack some of `replicas`, to nodes with a device.
    #[must_use]
    pub fn repairing(mut self, replicas: u32, nodes: &[NodeInfo]) -> Self {
        self.repair.replicas = replicas as usize;
        self.repair.devices = nodes.iter().filter(|node| node.device).cloned().collect();
        self
    }

    /// Makes nodes backups that have got a whole copy, and has homes copied that lack replicas.
    pub(super) fn repair(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        let is_settling =
            |change: &MapChange| matches!(change, MapChange::Excluded(..) | MapChange::Readmitted(_));
        if changes.iter().any(is_settling) {
            self.repair.changed = now;
        }
        self.take_copied(changes);
        self.repair.failed.retain(|_, at| now < *at + FAILED_TIME);
        let (map, replicas) = (&self.map, self.repair.replicas);
        self.repair.former.retain(|(home, _)| map.copies(*home) < replicas);
        if !self.is_settled(now) {
            return;
        }
        for home in self.map.homes().collect::<Vec<_>>() {
            if self.map.copies(home) >= self.repair.replicas
                || self.map.joining(home).is_some()
                || self.map.excludes(self.map.primary(home))
            {
                continue;
            }
            if let Some(node) = self.choose_joining(home) {
                self.map = self.map.copying(home, node);
                changes.push(MapChange::Copying(home, node));
            }
        }
    }

    /// Whether homes may be copied: nodes have not failed or returned just now.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        self.repair.replicas > 0 && now >= self.repair.changed + SETTLING_TIME
    }

    fn take_copied(&mut self, changes: &mut Vec<MapChange>) {
        for (&node, member) in &mut self.members {
            for (home, joining) in std::mem::take(&mut member.copied) {
                let is_current = u64::from(home.0) < self.map.count()
                    && self.map.primary(home) == node
                    && self.map.joining(home) == Some(joining);
                if is_current {
                    self.map = self.map.copied(home);
                    changes.push(MapChange::Copied(home, joining));
                }
            }
        }
    }

    /// The node that gets a copy of a home: on a host, then in a group, without a replica, as far as there is one, one that had a copy before,
    /// and with the fewest homes.
    fn choose_joining(&self, home: HomeId) -> Option<NodeId> {
        let info = |node: NodeId| self.repair.devices.iter().find(|info| info.id == node);
        let replicas: Vec<_> = self.map.replicas(home).filter_map(info).collect();
        let load = |node| self.map.homes().filter(|&home| self.map.is_on(home, node)).count();
        let rank = |candidate: &&NodeInfo| {
            let host = replicas.iter().any(|one| one.host == candidate.host);
            let group = replicas.iter().any(|one| one.group == candidate.group);
            let is_new = !self.repair.former.contains(&(home, candidate.id));
            (host, group, is_new, load(candidate.id), candidate.id)
        };
        let may_get = |candidate: &&NodeInfo| {
            let node = candidate.id;
            self.right(node) == Right::Held
                && !self.balance.is_leaving(node)
                && !self.map.is_on(home, node)
                && !self.repair.failed.contains_key(&(home, node))
                && self.members.get(&node).is_some_and(|member| member.is_up())
        };
        self.repair.devices.iter().filter(may_get).min_by_key(rank).map(|info| info.id)
    }
}
