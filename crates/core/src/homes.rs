//! Homes, and the map that assigns each of them to nodes.
//!
//! A job divides its names and data among a fixed number of homes (`placement`). One node serves each home, its primary. Other nodes, its
//! backups, may have copies of the home. The map may change while the job runs; its epoch numbers the changes. A request names the epoch
//! under which its sender chose the node, and an agent with another epoch refuses it. The two agents then exchange the newer map, and the
//! sender chooses again.
//!
//! If homes have replicas, an authority (`tameike-agent`) changes the map: it excludes nodes that have failed, hang or are cut off, and backups
//! serve their homes from then on. It also adds nodes to the map, and moves homes between nodes.

use crate::ids::{HomeId, NodeId};
use crate::limits::{ARRIVED_NODES_MAX, HOMES_MAX, HOMES_PER_NODE, REPLICAS_MAX, REPLICATED_NODES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A node, as all agents know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number, which is also its index in [`Cluster::nodes`].
    pub id: NodeId,
    /// Host name, for people and for ssh.
    pub host: String,
    /// `address:port` of the agent's fabric end point.
    pub address: String,
    /// Nodes of one group share the group's burst-buffer nodes.
    pub group: u32,
    /// Whether the node has a device, which makes it a burst-buffer node.
    pub device: bool,
}

/// Number of a home map: each change of the map of a job raises it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MapEpoch(pub u64);

/// Assignment of homes to nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Fields", into = "Fields")]
pub struct HomeMap {
    /// Its number.
    pub epoch: MapEpoch,
    /// The primary of each home. Its length is a power of two.
    primaries: Vec<NodeId>,
    /// The epoch since which each home has its primary.
    since: Vec<MapEpoch>,
    /// The backups of each home. Empty if the homes of the job have no replicas.
    backups: Vec<Vec<NodeId>>,
    /// Nodes that have failed, hang or are cut off, ascending. They are no backups, and serve only homes of which they have the only copy.
    excluded: Vec<NodeId>,
    /// Homes that are being copied, ascending, each with the node that becomes a backup then.
    joining: Vec<(HomeId, NodeId)>,
    /// Nodes that were added to the job, and nodes that were restarted and have another address, ascending.
    arrived: Vec<NodeInfo>,
    /// All nodes that serve homes, ascending.
    nodes: Vec<NodeId>,
    /// The last epoch in which a home got another primary.
    last_move: MapEpoch,
}

/// A map in messages.
#[derive(Serialize, Deserialize)]
struct Fields {
    epoch: MapEpoch,
    primaries: Vec<NodeId>,
    since: Vec<MapEpoch>,
    backups: Vec<Vec<NodeId>>,
    excluded: Vec<NodeId>,
    joining: Vec<(HomeId, NodeId)>,
    arrived: Vec<NodeInfo>,
}

impl From<Fields> for HomeMap {
    fn from(fields: Fields) -> Self {
        let Fields { epoch, primaries, since, backups, excluded, mut joining, mut arrived } = fields;
        let (nodes, excluded) = (ascending(primaries.clone()), ascending(excluded));
        let last_move = since.iter().copied().max().unwrap_or_default();
        joining.sort_unstable();
        arrived.sort_by_key(|info| info.id);
        Self { epoch, primaries, since, backups, excluded, joining, arrived, nodes, last_move }
    }
}

impl From<HomeMap> for Fields {
    fn from(map: HomeMap) -> Self {
        let HomeMap { epoch, primaries, since, backups, excluded, joining, arrived, .. } = map;
        Self { epoch, primaries, since, backups, excluded, joining, arrived }
    }
}

fn ascending(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

impl HomeMap {
    /// The first map of a job: the homes go to the nodes with a device in turn. Each home has `replicas` of them, its backups on other
    /// hosts as far as possible, and then in other groups. The backups of a node's homes are spread over the other nodes.
    ///
    /// # Errors
    /// A message for people: too few nodes with a device for the replicas, or too many for a map with replicas.
    pub fn initial(nodes: &[NodeInfo], replicas: u32) -> Result<Self, String> {
        let devices: Vec<_> = nodes.iter().filter(|node| node.device).collect();
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            return Err(format!("data has 1 to {REPLICAS_MAX} replicas, not {replicas}"));
        }
        if devices.len() < replicas as usize {
            let have = devices.len();
            return Err(format!(
                "{replicas} replicas need as many nodes with a device, and the job has {have}"
            ));
        }
        if replicas > 1 && devices.len() > REPLICATED_NODES_MAX {
            let have = devices.len();
            return Err(format!(
                "a job with replicas has at most {REPLICATED_NODES_MAX} nodes with a device, not {have}"
            ));
        }
        let count = (devices.len() * HOMES_PER_NODE).next_power_of_two().min(HOMES_MAX);
        let primaries = (0..count).map(|home| devices[home % devices.len()].id).collect();
        let epoch = MapEpoch(1);
        let served = |place| (count + devices.len() - 1 - place) / devices.len();
        let copies = (0..devices.len()).map(|place| served(place) as u32).collect();
        let mut chosen = Backups { devices: &devices, copies };
        let replicated = 0..if replicas > 1 { count } else { 0 };
        let backups = replicated.map(|home| chosen.choose(home, replicas as usize - 1)).collect();
        let (excluded, joining, arrived) = Default::default();
        let since = vec![epoch; count];
        Ok(Fields { epoch, primaries, since, backups, excluded, joining, arrived }.into())
    }

    /// The next map, after `change`.
    fn next(&self, change: impl FnOnce(&mut Fields)) -> Self {
        let mut fields = Fields::from(self.clone());
        fields.epoch.0 += 1;
        change(&mut fields);
        let primaries = fields.primaries.iter().zip(&self.primaries);
        for ((now, before), since) in primaries.zip(&mut fields.since) {
            if now != before {
                *since = fields.epoch;
            }
        }
        fields.into()
    }

    /// The next map, in which `node` serves `home`.
    #[must_use]
    pub fn with_primary(&self, home: HomeId, node: NodeId) -> Self {
        self.next(|map| {
            let home = usize::from(home.0);
            map.primaries[home] = node;
            map.joining.retain(|(of, _)| usize::from(of.0) != home);
            if let Some(backups) = map.backups.get_mut(home) {
                backups.retain(|backup| *backup != node);
            }
        })
    }

    /// The next map, which has a node that is new in the job, or that was restarted and has another address. It is excluded until it answers.
    #[must_use]
    pub fn adding(&self, node: NodeInfo) -> Self {
        let next = self.next(|map| {
            map.excluded.push(node.id);
            map.arrived.retain(|other| other.id != node.id);
            map.arrived.push(node);
        });
        debug_assert!(next.is_valid(), "a node that has homes is excluded first");
        next
    }

    /// This map with other addresses of the nodes that have arrived since the job began.
    #[must_use]
    pub fn with_arrived(&self, arrived: Vec<NodeInfo>) -> Self {
        Fields { arrived, ..Fields::from(self.clone()) }.into()
    }

    /// The nodes that were added to the job, and those that were restarted and have another address, ascending.
    pub fn arrived(&self) -> &[NodeInfo] {
        &self.arrived
    }

    /// The next map, in which a node is excluded: it is no backup, and the first backup of each of its homes serves the home. Homes of which it
    /// has the only copy stay with it.
    #[must_use]
    pub fn excluding(&self, node: NodeId) -> Self {
        self.next(|map| {
            map.excluded.push(node);
            let primaries = &map.primaries;
            map.joining.retain(|(home, joiner)| *joiner != node && primaries[usize::from(home.0)] != node);
            for (primary, backups) in map.primaries.iter_mut().zip(&mut map.backups) {
                backups.retain(|backup| *backup != node);
                if *primary == node && !backups.is_empty() {
                    *primary = backups.remove(0);
                }
            }
        })
    }

    /// The next map, in which a node is not excluded any more. It has no home yet.
    #[must_use]
    pub fn readmitting(&self, node: NodeId) -> Self {
        self.next(|map| map.excluded.retain(|other| *other != node))
    }

    /// The next map, in which a home is being copied to a node, which is no replica of it yet.
    #[must_use]
    pub fn copying(&self, home: HomeId, node: NodeId) -> Self {
        self.next(|map| map.joining.push((home, node)))
    }

    /// The next map, in which the node to which a home was copied is a backup of it.
    #[must_use]
    pub fn copied(&self, home: HomeId) -> Self {
        let joiner = self.joining(home);
        self.next(|map| {
            map.joining.retain(|(of, _)| *of != home);
            if let Some(backups) = map.backups.get_mut(usize::from(home.0)) {
                backups.extend(joiner);
            }
        })
    }

    /// The next map, in which a node is no backup of a home, and the home is not being copied to it.
    #[must_use]
    pub fn without_backup(&self, home: HomeId, node: NodeId) -> Self {
        self.next(|map| {
            map.joining.retain(|joining| *joining != (home, node));
            if let Some(backups) = map.backups.get_mut(usize::from(home.0)) {
                backups.retain(|backup| *backup != node);
            }
        })
    }

    /// Whether no home has got another primary since the map of an epoch.
    pub fn keeps_primaries_of(&self, epoch: MapEpoch) -> bool {
        self.last_move <= epoch
    }

    /// The epoch since which a home has its primary. The same node may have been its primary in earlier epochs too.
    pub fn primary_since(&self, home: HomeId) -> MapEpoch {
        self.since[usize::from(home.0)]
    }

    /// Number of homes.
    pub fn count(&self) -> u64 {
        self.primaries.len() as u64
    }

    /// Whether the homes of the job have replicas.
    pub fn is_replicated(&self) -> bool {
        !self.backups.is_empty()
    }

    /// Whether a node is excluded.
    pub fn excludes(&self, node: NodeId) -> bool {
        self.excluded.binary_search(&node).is_ok()
    }

    /// The excluded nodes, ascending.
    pub fn excluded(&self) -> &[NodeId] {
        &self.excluded
    }

    /// The homes that are on no node but excluded ones.
    pub fn homes_without_node(&self) -> impl Iterator<Item = HomeId> {
        self.homes().filter(|home| self.excludes(self.primary(*home)))
    }

    /// All homes.
    pub fn homes(&self) -> impl Iterator<Item = HomeId> + use<> {
        (0..self.primaries.len()).map(|home| HomeId(home as u16))
    }

    /// Whether the map has backups for all homes or for none, no home twice on a node, and no excluded node as a backup.
    pub fn is_valid(&self) -> bool {
        let sizes = self.backups.is_empty() || self.backups.len() == self.primaries.len();
        let sizes = sizes && !self.backups.iter().flatten().any(|backup| self.excludes(*backup));
        let may_join = |(home, joiner): &(HomeId, NodeId)| {
            usize::from(home.0) < self.backups.len()
                && self.primary(*home) != *joiner
                && !self.backups(*home).contains(joiner)
                && !self.excludes(*joiner)
        };
        let arrives_once = self.arrived.len() <= ARRIVED_NODES_MAX
            && self.arrived.windows(2).all(|pair| pair[0].id < pair[1].id);
        let sizes = sizes && arrives_once;
        let sizes = sizes && self.since.len() == self.primaries.len() && self.last_move <= self.epoch;
        let joins_once = self.joining.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let sizes = sizes && joins_once && self.joining.iter().all(may_join);
        let mut homes = self.primaries.iter().zip(&self.backups);
        sizes
            && homes.all(|(primary, backups)| {
                let replicas = BTreeSet::from_iter(backups.iter().chain([primary]));
                replicas.len() == backups.len() + 1
            })
    }

    /// Number of nodes that have a copy of a home.
    pub fn copies(&self, home: HomeId) -> usize {
        1 + self.backups(home).len()
    }

    /// The nodes that have a copy of a home, the one that serves it first.
    pub fn replicas(&self, home: HomeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.primary(home)).chain(self.backups(home).iter().copied())
    }

    /// The node that serves a home.
    pub fn primary(&self, home: HomeId) -> NodeId {
        self.primaries[usize::from(home.0)]
    }

    /// The other nodes with a copy of a home.
    pub fn backups(&self, home: HomeId) -> &[NodeId] {
        self.backups.get(usize::from(home.0)).map_or(&[], Vec::as_slice)
    }

    /// The node to which a home is being copied.
    pub fn joining(&self, home: HomeId) -> Option<NodeId> {
        let place = self.joining.binary_search_by_key(&home, |(of, _)| *of).ok()?;
        Some(self.joining[place].1)
    }

    /// The homes that are being copied, ascending, each with the node that becomes a backup then.
    pub fn all_joining(&self) -> &[(HomeId, NodeId)] {
        &self.joining
    }

    /// Whether a node has a copy of a home, or gets one.
    pub fn is_on(&self, home: HomeId, node: NodeId) -> bool {
        self.primary(home) == node || self.backups(home).contains(&node) || self.joining(home) == Some(node)
    }

    /// The homes that a node serves, ascending.
    pub fn served_by(&self, node: NodeId) -> impl Iterator<Item = HomeId> {
        let all = self.primaries.iter().enumerate();
        all.filter(move |(_, primary)| **primary == node).map(|(home, _)| HomeId(home as u16))
    }

    /// The nodes that serve these homes, ascending, each once.
    pub fn primaries(&self, homes: impl IntoIterator<Item = HomeId>) -> Vec<NodeId> {
        ascending(homes.into_iter().map(|home| self.primary(home)).collect())
    }

    /// All nodes that serve homes, ascending.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// All nodes that the map names, ascending.
    pub fn members(&self) -> Vec<NodeId> {
        let joining = self.joining.iter().map(|(_, joiner)| joiner);
        let all = self.nodes.iter().chain(self.backups.iter().flatten()).chain(&self.excluded).chain(joining);
        ascending(all.copied().collect())
    }
}

/// Chooses backups, home after home.
struct Backups<'a> {
    devices: &'a [&'a NodeInfo],
    /// Number of homes of which each of them has a copy so far.
    copies: Vec<u32>,
}

impl Backups<'_> {
    /// Backups of a home, one after another: each on a host, then in a group, that has no replica yet, as far as there is one, and on a
    /// node with the fewest copies. The search begins at another node for each home of a node.
    fn choose(&mut self, home: usize, count: usize) -> Vec<NodeId> {
        let devices = self.devices;
        let (place, round) = (home % devices.len(), home / devices.len());
        let first = place + 1 + round * (devices.len() / HOMES_PER_NODE).max(1);
        let mut chosen = vec![devices[place]];
        while chosen.len() <= count {
            let rank = |index: usize| {
                let node = devices[index];
                let host = chosen.iter().any(|one| one.host == node.host);
                let group = chosen.iter().any(|one| one.group == node.group);
                let turn = (index + devices.len() - first % devices.len()) % devices.len();
                (host, group, self.copies[index], turn)
            };
            let others =
                (0..devices.len()).filter(|&index| chosen.iter().all(|one| one.id != devices[index].id));
            let Some(next) = others.min_by_key(|&index| rank(index)) else { break };
            self.copies[next] += 1;
            chosen.push(devices[next]);
        }
        chosen[1..].iter().map(|node| node.id).collect()
    }
}

/// A set of homes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HomeSet {
    /// All homes.
    All,
    /// These homes.
    Of(BTreeSet<HomeId>),
}

impl HomeSet {
    /// Whether it has no home.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Of(homes) if homes.is_empty())
    }

    /// The homes that a node serves under a map; all, if none of the homes of the job has copies.
    pub fn served(map: &HomeMap, node: NodeId) -> Self {
        if map.is_replicated() { map.served_by(node).collect() } else { Self::All }
    }

    /// Whether it has a home.
    pub fn contains(&self, home: HomeId) -> bool {
        match self {
            Self::All => true,
            Self::Of(homes) => homes.contains(&home),
        }
    }
}

impl FromIterator<HomeId> for HomeSet {
    fn from_iter<T: IntoIterator<Item = HomeId>>(homes: T) -> Self {
        Self::Of(homes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec;

    /// Nodes with a device: `per_host` on each host, `per_group` in each group.
    fn nodes(count: u32, per_host: u32, per_group: u32) -> Vec<NodeInfo> {
        let node = |id: u32| NodeInfo {
            id: NodeId(id),
            host: format!("host{}", id / per_host),
            address: String::new(),
            group: id / per_group,
            device: true,
        };
        (0..count).map(node).collect()
    }

    fn initial(count: u32) -> HomeMap {
        HomeMap::initial(&nodes(count, 1, 1), 1).expect("enough nodes")
    }

    #[test]
    fn homes_are_a_power_of_two_and_spread_evenly() {
        for count in [1, 2, 3, 5, 64, 1000, 1024, 10_000, 16_384] {
            let map = initial(count);
            assert!(map.count().is_power_of_two() && map.count() <= HOMES_MAX as u64);
            let mut served = vec![0_u32; count as usize];
            (0..map.count()).for_each(|home| served[map.primary(HomeId(home as u16)).0 as usize] += 1);
            let (least, most) = (served.iter().min().expect("a node"), served.iter().max().expect("a node"));
            assert!(*least > 0 && most - least <= 1, "{count} nodes serve {least} to {most} homes");
            let above = f64::from(*most) / (map.count() as f64 / f64::from(count)) - 1.0;
            assert!(above < if count > 4096 { 0.15 } else { 1.0 / 16.0 }, "{count} nodes: {above}");
            assert_eq!(map.nodes(), (0..count).map(NodeId).collect::<Vec<_>>());
            assert!(!map.is_replicated() && map.is_valid());
        }
    }

    /// Backups on the host of another replica, and those in its group, by a map of these nodes.
    fn shared(nodes: &[NodeInfo], map: &HomeMap) -> (usize, usize) {
        let (mut hosts, mut groups) = (0, 0);
        for home in (0..map.count()).map(|home| HomeId(home as u16)) {
            let mut all = vec![&nodes[map.primary(home).0 as usize]];
            for backup in map.backups(home).iter().map(|backup| &nodes[backup.0 as usize]) {
                hosts += usize::from(all.iter().any(|one| one.host == backup.host));
                groups += usize::from(all.iter().any(|one| one.group == backup.group));
                all.push(backup);
            }
        }
        (hosts, groups)
    }

    #[test]
    fn backups_are_on_other_hosts_and_in_other_groups_and_spread_evenly() {
        for (count, per_host, per_group, replicas) in [
            (2, 1, 1, 2),
            (4, 1, 1, 2),
            (4, 1, 2, 3),
            (6, 2, 2, 3),
            (9, 1, 3, 3),
            (64, 2, 8, 2),
            (1024, 1, 32, 3),
        ] {
            let nodes = nodes(count, per_host, per_group);
            let map = HomeMap::initial(&nodes, replicas).expect("enough nodes");
            assert!(map.is_valid() && map.is_replicated());
            let homes = (0..map.count()).map(|home| HomeId(home as u16));
            let mut copies = vec![0_u32; count as usize];
            for home in homes {
                assert_eq!(map.backups(home).len() as u32, replicas - 1);
                map.backups(home).iter().for_each(|backup| copies[backup.0 as usize] += 1);
            }
            let mean = map.count() as f64 * f64::from(replicas - 1) / f64::from(count);
            let most = f64::from(*copies.iter().max().expect("a node"));
            assert!(
                most < 1.1 * mean + 1.0,
                "{count} nodes, {replicas} replicas: {most} copies, mean {mean}"
            );
            let others = map.served_by(NodeId(0)).flat_map(|home| map.backups(home)).collect::<BTreeSet<_>>();
            let foreign = nodes.iter().filter(|node| node.group != 0).count();
            assert!(others.len() >= foreign.min(HOMES_PER_NODE / 2), "node 0 has few backups: {others:?}");
            let groups = count / per_group;
            let expected = if groups >= replicas { (0, 0) } else { (0, map.count() as usize) };
            assert_eq!(shared(&nodes, &map), expected, "{count} nodes, {replicas} replicas");
        }
        // With too few hosts, the groups still count; with one host and group, any other node will do.
        let map = HomeMap::initial(&nodes(4, 4, 2), 2).expect("enough nodes");
        assert_eq!(shared(&nodes(4, 4, 2), &map), (map.count() as usize, 0));
        assert!(HomeMap::initial(&nodes(4, 4, 4), 3).expect("enough nodes").is_valid());
    }

    #[test]
    fn a_map_with_too_many_replicas_or_nodes_is_refused() {
        for (count, replicas) in [(1, 2), (2, 3), (4, 0), (9, REPLICAS_MAX + 1), (1025, 2)] {
            assert!(HomeMap::initial(&nodes(count, 1, 1), replicas).is_err(), "{count}, {replicas}");
        }
        let mut map = HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes");
        map.backups[5].push(map.primaries[5]);
        assert!(!map.is_valid());
        map.backups.truncate(5);
        assert!(!map.is_valid());
    }

    #[test]
    fn a_new_primary_is_no_backup() {
        let map = HomeMap::initial(&nodes(3, 1, 1), 3).expect("enough nodes");
        let (home, backup) = (HomeId(4), map.backups(HomeId(4))[0]);
        let next = map.with_primary(home, backup);
        assert_eq!((next.primary(home), next.backups(home).len()), (backup, 1));
        assert!(next.is_valid() && next.epoch > map.epoch);
        let without = next.without_backup(home, next.backups(home)[0]);
        assert!(without.backups(home).is_empty() && without.is_valid() && without.epoch > next.epoch);
        assert!(map.homes().filter(|one| *one != home).all(|home| without.backups(home).len() == 2));
    }

    #[test]
    fn a_map_has_the_epoch_since_which_each_home_has_its_primary() {
        let first = HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes");
        let (home, node, backup) = (HomeId(4), first.primary(HomeId(4)), first.backups(HomeId(4))[0]);
        assert!(first.homes().all(|home| first.primary_since(home) == first.epoch));
        let moved = first.with_primary(home, backup);
        assert_eq!(moved.primary_since(home), moved.epoch);
        assert!(!moved.keeps_primaries_of(first.epoch) && moved.keeps_primaries_of(moved.epoch));
        // A change without another primary keeps the epochs.
        let back = moved.without_backup(home, node).with_primary(home, node);
        assert_eq!((back.primary(home), back.primary_since(home)), (node, back.epoch));
        assert!(!back.keeps_primaries_of(moved.epoch));
        let others = back.homes().filter(|other| *other != home);
        assert!({ others }.all(|other| back.primary_since(other) == first.epoch));
        // The backups of an excluded node serve its homes.
        let lost = back.excluding(node);
        let is_moved = |home: HomeId| lost.primary(home) != back.primary(home);
        let expected = |home| if is_moved(home) { lost.epoch } else { back.primary_since(home) };
        assert!(
            lost.homes().any(is_moved) && lost.homes().all(|home| lost.primary_since(home) == expected(home))
        );
        // Epochs that are missing or to come are not valid.
        for since in [vec![first.epoch; 3], vec![MapEpoch(2); first.primaries.len()]] {
            assert!(!HomeMap::from(Fields { since, ..first.clone().into() }).is_valid());
        }
    }

    #[test]
    fn backups_serve_the_homes_of_an_excluded_node() {
        let map = HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes");
        let (gone, last) = (NodeId(1), NodeId(2));
        let next = map.excluding(gone);
        assert!(next.is_valid() && next.epoch > map.epoch && next.excludes(gone) && !next.excludes(last));
        for home in map.homes() {
            let primary = if map.primary(home) == gone { map.backups(home)[0] } else { map.primary(home) };
            assert_eq!(next.primary(home), primary);
            let left = map.primary(home) != gone && map.backups(home) != [gone];
            assert_eq!(next.backups(home).len(), usize::from(left));
        }
        assert_eq!(next.homes_without_node().count(), 0);
        // Homes whose only copy is on an excluded node stay there.
        let alone = next.excluding(last);
        assert!(alone.is_valid() && alone.served_by(last).count() > 0);
        assert!(alone.homes_without_node().eq(alone.served_by(last)));
        let back = alone.readmitting(last);
        assert_eq!((back.excluded(), back.homes_without_node().count()), (&[gone][..], 0));
        let bytes = codec::encode(&back).expect("small");
        assert_eq!(codec::decode::<HomeMap>(&bytes), Ok(back));
    }

    #[test]
    fn a_node_becomes_a_backup_when_the_home_is_copied() {
        let map = HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes").excluding(NodeId(2));
        let home = map.homes().find(|home| map.backups(*home).is_empty()).expect("node 2 had copies");
        let other = NodeId(1 - map.primary(home).0);
        let joining = map.copying(home, other);
        assert!(joining.is_valid() && joining.is_on(home, other) && !joining.backups(home).contains(&other));
        assert_eq!((joining.joining(home), joining.all_joining()), (Some(other), &[(home, other)][..]));
        assert!(!joining.copying(home, other).is_valid(), "one node at a time");
        assert!(!map.copying(home, NodeId(2)).is_valid() && !map.copying(home, map.primary(home)).is_valid());
        let copied = joining.copied(home);
        assert_eq!((copied.backups(home), copied.joining(home)), (&[other][..], None));
        assert!(copied.is_valid() && copied.epoch > joining.epoch);
        // The copy is of no use without the primary that makes it, or without its node.
        for lost in [joining.excluding(other), joining.excluding(map.primary(home))] {
            assert!(lost.is_valid() && lost.joining(home).is_none());
        }
        assert_eq!(joining.without_backup(home, other).joining(home), None);
        let bytes = codec::encode(&joining).expect("small");
        assert_eq!(codec::decode::<HomeMap>(&bytes), Ok(joining));
    }

    #[test]
    fn a_node_serves_the_homes_of_which_it_is_the_primary() {
        let map = HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes");
        let own = HomeSet::served(&map, NodeId(1));
        assert!(map.homes().all(|home| own.contains(home) == (map.primary(home) == NodeId(1))));
        assert_eq!(map.served_by(NodeId(1)).collect::<HomeSet>(), own);
        assert_eq!(HomeSet::served(&initial(3), NodeId(1)), HomeSet::All);
    }

    #[test]
    fn a_map_survives_a_message() {
        let map =
            HomeMap::initial(&nodes(3, 1, 1), 2).expect("enough nodes").with_primary(HomeId(3), NodeId(1));
        assert_eq!(codec::decode(&codec::encode(&map).expect("small")), Ok(map));
        // The largest maps fit a message.
        codec::encode(&initial(16_384)).expect("not too large");
        let largest = HomeMap::initial(&nodes(REPLICATED_NODES_MAX as u32, 1, 1), REPLICAS_MAX);
        codec::encode(&largest.expect("enough nodes")).expect("not too large");
    }
}
