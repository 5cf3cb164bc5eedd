//! Homes, and the map that assigns each of them to a node.
//!
//! A job divides its names and data among a fixed number of homes (`placement`). One node serves each home, its primary. The map may change
//! while the job runs; its epoch numbers the changes. A request names the epoch under which its sender chose the node, and an agent with
//! another epoch refuses it. The two agents then exchange the newer map, and the sender chooses again.

use crate::ids::{HomeId, NodeId};
use crate::limits::{HOMES_MAX, HOMES_PER_NODE};
use serde::{Deserialize, Serialize};

/// Number of a home map: each change of the map of a job raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MapEpoch(pub u64);

/// Assignment of homes to nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Fields", into = "Fields")]
pub struct HomeMap {
    /// Its number.
    pub epoch: MapEpoch,
    /// The primary of each home. Its length is a power of two.
    primaries: Vec<NodeId>,
    /// The nodes among them, ascending.
    nodes: Vec<NodeId>,
}

/// A map in messages.
#[derive(Serialize, Deserialize)]
struct Fields {
    epoch: MapEpoch,
    primaries: Vec<NodeId>,
}

impl From<Fields> for HomeMap {
    fn from(Fields { epoch, primaries }: Fields) -> Self {
        let nodes = ascending(primaries.clone());
        Self { epoch, primaries, nodes }
    }
}

impl From<HomeMap> for Fields {
    fn from(HomeMap { epoch, primaries, .. }: HomeMap) -> Self {
        Self { epoch, primaries }
    }
}

fn ascending(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

impl HomeMap {
    /// The first map of a job: the homes go to these nodes in turn. `device_nodes` is not empty.
    pub fn initial(device_nodes: &[NodeId]) -> Self {
        let count = (device_nodes.len() * HOMES_PER_NODE).next_power_of_two().min(HOMES_MAX);
        let primaries = (0..count).map(|home| device_nodes[home % device_nodes.len()]).collect();
        Fields { epoch: MapEpoch(1), primaries }.into()
    }

    /// The next map, in which `node` serves `home`.
    #[must_use]
    pub fn with_primary(&self, home: HomeId, node: NodeId) -> Self {
        let mut primaries = self.primaries.clone();
        primaries[usize::from(home.0)] = node;
        Fields { epoch: MapEpoch(self.epoch.0 + 1), primaries }.into()
    }

    /// Number of homes.
    pub fn count(&self) -> u64 {
        self.primaries.len() as u64
    }

    /// The node that serves a home.
    pub fn primary(&self, home: HomeId) -> NodeId {
        self.primaries[usize::from(home.0)]
    }

    /// The nodes that serve these homes, ascending, each once.
    pub fn primaries(&self, homes: impl IntoIterator<Item = HomeId>) -> Vec<NodeId> {
        ascending(homes.into_iter().map(|home| self.primary(home)).collect())
    }

    /// All nodes that serve homes, ascending.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec;

    fn nodes(count: u32) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    #[test]
    fn homes_are_a_power_of_two_and_spread_evenly() {
        for count in [1, 2, 3, 5, 64, 1000, 1024, 10_000, 16_384] {
            let map = HomeMap::initial(&nodes(count));
            assert!(map.count().is_power_of_two() && map.count() <= HOMES_MAX as u64);
            let mut served = vec![0_u32; count as usize];
            (0..map.count()).for_each(|home| served[map.primary(HomeId(home as u16)).0 as usize] += 1);
            let (least, most) = (served.iter().min().expect("a node"), served.iter().max().expect("a node"));
            assert!(*least > 0 && most - least <= 1, "{count} nodes serve {least} to {most} homes");
            let above = f64::from(*most) / (map.count() as f64 / f64::from(count)) - 1.0;
            assert!(above < if count > 4096 { 0.15 } else { 1.0 / 16.0 }, "{count} nodes: {above}");
            assert_eq!(map.nodes(), nodes(count));
        }
    }

    #[test]
    fn a_map_survives_a_message() {
        let map = HomeMap::initial(&nodes(3)).with_primary(HomeId(3), NodeId(1));
        assert_eq!(codec::decode(&codec::encode(&map).expect("small")), Ok(map));
        // The largest map fits a message.
        codec::encode(&HomeMap::initial(&nodes(16_384))).expect("not too large");
    }
}
