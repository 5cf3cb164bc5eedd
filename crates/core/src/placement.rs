//! Placement of names and data on homes by formula: the data path needs no lookup.

use crate::homes::{HomeMap, MapEpoch, NodeInfo};
use crate::ids::{DirOffset, HomeId, InodeId, JobId, NodeId, Slot, UnitId};
use crate::limits::SLOT_COUNT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use xxhash_rust::xxh3::xxh3_64;

/// Distribution of a file's data over the burst-buffer nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// Units round-robin over all homes, and thus over all burst-buffer nodes.
    #[default]
    Striped,
    /// Units round-robin over homes of this many burst-buffer nodes; the inode number chooses the first.
    StripedOver(u32),
    /// Of a directory: files created in it are on their creator's node.
    Local,
    /// All units at one home, which this node serves, or the burst-buffer node of its group.
    On(NodeId),
}

impl Layout {
    /// The layout of a file that `writer` creates in a directory with this layout.
    #[must_use]
    pub fn inherited_by_file(self, writer: NodeId) -> Self {
        if self == Self::Local { Self::On(writer) } else { self }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Striped => write!(f, "striped"),
            Self::StripedOver(width) => write!(f, "striped:{width}"),
            Self::Local => write!(f, "local"),
            Self::On(node) => write!(f, "node:{}", node.0),
        }
    }
}

impl std::str::FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("layout {text:?} is not one of: striped, striped:WIDTH, local, node:N");
        match text.split_once(':') {
            None if text == "striped" => Ok(Self::Striped),
            None if text == "local" => Ok(Self::Local),
            Some(("striped", width)) => match width.parse() {
                Ok(width) if width > 0 => Ok(Self::StripedOver(width)),
                _ => Err(wrong()),
            },
            Some(("node", node)) => node.parse().map(|node| Self::On(NodeId(node))).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

/// The nodes of a job, the functions that place names and data on homes, and the nodes that serve these.
#[derive(Debug)]
pub struct Cluster {
    /// The job.
    pub job: JobId,
    /// The nodes with which the job began. Placement depends on these only.
    founders: Vec<NodeInfo>,
    /// The burst-buffer nodes among them.
    device_nodes: Vec<NodeId>,
    /// Number of homes, which never changes.
    homes: u64,
    /// Replicas of each home when no node has failed.
    replicas: u32,
    current: RwLock<Current>,
    watchers: RwLock<Vec<Watcher>>,
}

/// What changes while the job runs.
#[derive(Debug)]
struct Current {
    map: Arc<HomeMap>,
    /// All nodes, by number.
    nodes: Arc<[NodeInfo]>,
}

/// A function that is called after each change of the home map.
struct Watcher(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Cluster {
    /// A cluster of the nodes with which a job begins, which are numbered in order from 0, with the first home map, in which each home has this
    /// many replicas.
    ///
    /// # Errors
    /// A message for people: no nodes, too many, wrong numbers, none with a device, or too few of these for the replicas.
    pub fn new(job: JobId, nodes: Vec<NodeInfo>, replicas: u32) -> Result<Self, String> {
        if nodes.is_empty() || nodes.len() > crate::limits::NODES_MAX as usize {
            return Err(format!("a job has 1 to {} nodes, not {}", crate::limits::NODES_MAX, nodes.len()));
        }
        if nodes.iter().enumerate().any(|(place, node)| node.id.0 as usize != place) {
            return Err("the nodes of a job must be numbered 0, 1, 2, ... in order".to_owned());
        }
        let device_nodes: Vec<_> = nodes.iter().filter(|node| node.device).map(|node| node.id).collect();
        if device_nodes.is_empty() {
            return Err("at least one node of a job must have a device".to_owned());
        }
        let map = HomeMap::initial(&nodes, replicas)?;
        let homes = map.count();
        let current = RwLock::new(Current { map: Arc::new(map), nodes: nodes.clone().into() });
        Ok(Self { job, founders: nodes, device_nodes, homes, replicas, current, watchers: RwLock::default() })
    }

    /// Whether the homes of the job have replicas.
    pub fn is_replicated(&self) -> bool {
        self.replicas > 1
    }

    /// Number of replicas that each home has when no node has failed.
    pub fn replicas(&self) -> usize {
        self.replicas as usize
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current home map.
    pub fn map(&self) -> Arc<HomeMap> {
        self.current().map.clone()
    }

    /// Replaces the home map by a newer one. Returns false if the map is not newer, or not of this job.
    pub fn replace_map(&self, map: HomeMap) -> bool {
        let Some(nodes) = self.nodes_of(&map) else { return false };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = map.epoch > current.map.epoch;
        if is_newer {
            *current = Current { map: Arc::new(map), nodes: nodes.into() };
            drop(current);
            let watchers = self.watchers.read().unwrap_or_else(PoisonError::into_inner);
            watchers.iter().for_each(|watcher| watcher.0());
        }
        is_newer
    }

    /// Has `changed` called after each change of the home map, for as long as this cluster exists. It must not block.
    pub fn watch(&self, changed: impl Fn() + Send + Sync + 'static) {
        self.watchers.write().unwrap_or_else(PoisonError::into_inner).push(Watcher(Box::new(changed)));
    }

    /// Whether a map is valid, of a job with as many homes, and names nodes of this job only.
    pub fn fits(&self, map: &HomeMap) -> bool {
        self.nodes_of(map).is_some()
    }

    /// All nodes of the job under a map, by number; `None` if the map is not one of this job.
    fn nodes_of(&self, map: &HomeMap) -> Option<Vec<NodeInfo>> {
        let mut nodes = self.founders.clone();
        for info in map.arrived() {
            match nodes.get_mut(info.id.0 as usize) {
                Some(known) => known.clone_from(info),
                None => nodes.push(info.clone()),
            }
        }
        let is_numbered = nodes.iter().enumerate().all(|(place, node)| node.id.0 as usize == place);
        let known = nodes.len();
        let fits = map.count() == self.homes
            && map.is_valid()
            && is_numbered
            && known <= crate::limits::NODES_MAX as usize
            && map.members().iter().all(|node| (node.0 as usize) < known);
        fits.then_some(nodes)
    }

    /// The node that serves a home now.
    pub fn primary(&self, home: HomeId) -> NodeId {
        self.route(home).0
    }

    /// The node that serves a home now, and the epoch of the map.
    pub fn route(&self, home: HomeId) -> (NodeId, MapEpoch) {
        let current = self.current();
        (current.map.primary(home), current.map.epoch)
    }

    /// The epoch of the current home map.
    pub fn epoch(&self) -> MapEpoch {
        self.current().map.epoch
    }

    /// Whether no home has got another primary since the map of an epoch.
    pub fn keeps_primaries_of(&self, epoch: MapEpoch) -> bool {
        self.current().map.keeps_primaries_of(epoch)
    }

    /// All nodes, by number: those with which the job began, and those that were added to it.
    pub fn nodes(&self) -> Arc<[NodeInfo]> {
        self.current().nodes.clone()
    }

    /// The node with this number, if it exists.
    pub fn node(&self, id: NodeId) -> Option<NodeInfo> {
        self.current().nodes.get(id.0 as usize).cloned()
    }

    /// Number of nodes with which the job began.
    pub fn founders(&self) -> u32 {
        self.founders.len() as u32
    }

    /// The burst-buffer nodes with which the job began.
    pub fn device_nodes(&self) -> &[NodeId] {
        &self.device_nodes
    }

    /// The nodes that stay connected with a node, so that its failure is detected at once. Their numbers differ from
    /// its own by a power of two, modulo the number of nodes. A few such steps reach all nodes.
    pub fn neighbours(&self, node: NodeId) -> Vec<NodeId> {
        let count = self.current().nodes.len() as u64;
        let steps = (0..u64::BITS).map(|power| 1 << power).take_while(|step| *step < count);
        let around = steps.flat_map(|step| [step, count - step]);
        let mut all: Vec<_> =
            around.map(|step| NodeId(((u64::from(node.0) + step) % count) as u32)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The home of a slot.
    pub fn slot_home(&self, slot: Slot) -> HomeId {
        self.numbered_home(slot.0.into())
    }

    /// The ranges of numbers of cached files whose records a home has: the first and the last of each.
    pub fn cached_inodes_of(&self, home: HomeId) -> impl Iterator<Item = (InodeId, InodeId)> {
        let slots = (0..SLOT_COUNT).map(Slot).filter(move |&slot| self.slot_home(slot) == home);
        slots.flat_map(InodeId::cached_in)
    }

    /// The home of an inode's record (for a cached file: of its cache record).
    pub fn inode_home(&self, inode: InodeId) -> HomeId {
        inode.pinned_node().map_or_else(|| self.slot_home(inode.slot()), |node| self.home_at(node))
    }

    /// The home of the entries, times and counts of a directory that is not sharded.
    pub fn children_home(&self, dir: InodeId) -> HomeId {
        dir.pinned_node().map_or_else(|| self.slot_home(dir.children_slot()), |node| self.home_at(node))
    }

    /// The slot of an entry of `dir`.
    pub fn entry_slot(&self, dir: InodeId, offset: DirOffset, sharded: bool) -> Slot {
        if dir.pinned_node().is_some() {
            dir.slot()
        } else if sharded {
            offset.slot()
        } else {
            dir.children_slot()
        }
    }

    /// The home of an entry of `dir`.
    pub fn entry_home(&self, dir: InodeId, offset: DirOffset, sharded: bool) -> HomeId {
        match dir.pinned_node() {
            Some(node) => self.home_at(node),
            None => self.slot_home(self.entry_slot(dir, offset, sharded)),
        }
    }

    /// The homes that may have entries of a sharded directory.
    pub fn homes_of_entries(&self) -> impl Iterator<Item = HomeId> + use<> {
        (0..self.homes.min(SLOT_COUNT.into())).map(|home| HomeId(home as u16))
    }

    /// The burst-buffer node of `node`: itself, else one of its group with which the job began, else any of these.
    pub fn device_of(&self, node: NodeId) -> NodeId {
        let info = match self.founders.get(node.0 as usize) {
            Some(founder) => Some((founder.device, founder.group)),
            None => self.current().nodes.get(node.0 as usize).map(|added| (added.device, added.group)),
        };
        let Some((device, group)) = info else { return self.device_nodes[0] };
        if device {
            return node;
        }
        let of_group: Vec<_> =
            self.device_nodes.iter().filter(|id| self.founders[id.0 as usize].group == group).collect();
        let choice = if of_group.is_empty() { self.device_nodes.iter().collect() } else { of_group };
        *choice[node.0 as usize % choice.len()]
    }

    /// The home for files that belong on one node, which the burst-buffer node of `node` serves in the first map. For a node that was added
    /// to the job, the map decides whether it serves its home.
    pub fn home_at(&self, node: NodeId) -> HomeId {
        let device = self.device_of(node);
        match self.device_nodes.binary_search(&device) {
            Ok(index) => self.numbered_home(index as u64),
            Err(_) => self.numbered_home(device.0.into()),
        }
    }

    /// The home of a unit.
    pub fn unit_home(&self, layout: Layout, unit: UnitId) -> HomeId {
        self.turns(layout, unit.inode).home(unit.index)
    }

    /// The homes that may have units of a file. Each is the home of every nth unit, for the number n of these homes.
    pub fn unit_homes(&self, layout: Layout, inode: InodeId) -> Vec<HomeId> {
        let turns = self.turns(layout, inode);
        (0..turns.count).map(|index| turns.home(index)).collect()
    }

    /// The units of a file at some homes.
    pub fn units_of_homes(
        &self,
        layout: Layout,
        inode: InodeId,
        of: impl Fn(HomeId) -> bool,
    ) -> UnitsOfHomes {
        let homes = self.unit_homes(layout, inode);
        let period = homes.len() as u64;
        UnitsOfHomes { period, remainders: (0..period).zip(homes).filter(|(_, home)| of(*home)).collect() }
    }

    /// The nodes that have units with these indexes, under a map, each with the first of them.
    pub fn nodes_of_units(
        &self,
        map: &HomeMap,
        layout: Layout,
        inode: InodeId,
        indexes: Range<u64>,
    ) -> Vec<(NodeId, u64)> {
        let turns = self.turns(layout, inode);
        let mut first_of = BTreeMap::new();
        for index in indexes.start..indexes.end.min(indexes.start.saturating_add(turns.count)) {
            first_of.entry(map.primary(turns.home(index))).or_insert(index);
        }
        first_of.into_iter().collect()
    }

    /// The homes of a file's units, in turn.
    fn turns(&self, layout: Layout, inode: InodeId) -> Turns {
        let on = |node| Turns { count: 1, start: self.home_at(node).0.into(), modulus: self.homes, first: 0 };
        let (nodes, hash) = (self.device_nodes.len() as u64, || xxh3_64(&inode.0.to_be_bytes()));
        match layout {
            _ if let Some(node) = inode.pinned_node() => on(node),
            Layout::On(node) => on(node),
            Layout::StripedOver(width) if u64::from(width) < nodes => {
                // One home of each of `width` nodes: in the first map, `nodes` homes from a multiple of `nodes` on are on different nodes.
                let hash = hash();
                let first = (hash >> 32) % (self.homes / nodes) * nodes;
                Turns { count: width.max(1).into(), start: hash % nodes, modulus: nodes, first }
            }
            Layout::Striped | Layout::Local | Layout::StripedOver(_) => {
                Turns { count: self.homes, start: hash() % self.homes, modulus: self.homes, first: 0 }
            }
        }
    }

    fn numbered_home(&self, number: u64) -> HomeId {
        HomeId((number % self.homes) as u16)
    }
}

/// The homes of a file's units: unit i is at home `first + (start + i mod count) mod modulus`.
struct Turns {
    count: u64,
    start: u64,
    modulus: u64,
    first: u64,
}

impl Turns {
    fn home(&self, index: u64) -> HomeId {
        HomeId((self.first + (self.start + index % self.count) % self.modulus) as u16)
    }
}

/// The units of a file at some homes: those whose index has one of these remainders when it is divided by the period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitsOfHomes {
    period: u64,
    /// Ascending, each with the home.
    remainders: Vec<(u64, HomeId)>,
}

impl UnitsOfHomes {
    /// Their indexes from `first` on, each with its home.
    pub fn from(&self, first: u64) -> impl Iterator<Item = (u64, HomeId)> + '_ {
        let round = first - first % self.period;
        let rounds = (round..=u64::MAX - self.period).step_by(self.period as usize);
        // Homes without units of the file must not search for ever.
        let rounds = rounds.take(if self.remainders.is_empty() { 0 } else { usize::MAX });
        let of_round =
            |round| self.remainders.iter().map(move |&(remainder, home)| (round + remainder, home));
        rounds.flat_map(of_round).skip_while(move |(index, _)| *index < first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(devices: &[bool]) -> Cluster {
        let nodes = devices.iter().enumerate().map(|(id, &device)| NodeInfo {
            id: NodeId(id as u32),
            host: format!("host{id}"),
            address: String::new(),
            group: id as u32 / 2,
            device,
        });
        Cluster::new(JobId::new("job").expect("valid name"), nodes.collect(), 1).expect("valid cluster")
    }

    #[test]
    fn striped_units_use_all_nodes_round_robin() {
        let cluster = cluster(&[true; 4]);
        let inode = InodeId::in_slot(Slot(9), 77);
        let node_of = |layout, index| cluster.primary(cluster.unit_home(layout, UnitId { inode, index }));
        let nodes: Vec<_> = (0..8).map(|index| node_of(Layout::Striped, index)).collect();
        assert_eq!(nodes[..4], nodes[4..]);
        let count = |layout| cluster.map().primaries(cluster.unit_homes(layout, inode)).len();
        assert_eq!(
            (count(Layout::Striped), count(Layout::StripedOver(2)), count(Layout::StripedOver(9))),
            (4, 2, 4)
        );
        assert_eq!(node_of(Layout::StripedOver(2), 6), nodes[0]);
        assert_eq!(node_of(Layout::On(NodeId(3)), 6), NodeId(3));
    }

    /// Regression: homes with consecutive numbers were on the same node where the number of nodes is no power of two.
    #[test]
    fn a_file_over_some_nodes_has_as_many_units_on_each() {
        for (nodes, width) in [(3, 2), (5, 4), (4, 3), (3, 3), (4, 6), (7, 1)] {
            let cluster = cluster(&vec![true; nodes]);
            for number in 0..1000 {
                let (inode, layout) = (InodeId::in_slot(Slot(9), number), Layout::StripedOver(width));
                let mut units = BTreeMap::<NodeId, u32>::new();
                for index in 0..960 {
                    let node = cluster.primary(cluster.unit_home(layout, UnitId { inode, index }));
                    *units.entry(node).or_default() += 1;
                }
                let over = nodes.min(width as usize);
                assert_eq!(units.len(), over, "{nodes} nodes, striped over {width}");
                let even = 960.0 / over as f64;
                assert!(
                    units.values().all(|&count| (f64::from(count) / even - 1.0).abs() < 0.06),
                    "{units:?}"
                );
            }
        }
    }

    #[test]
    fn the_units_of_all_nodes_are_those_of_the_file() {
        for (devices, layout) in [
            (&[true; 3][..], Layout::Striped),
            (&[true; 3], Layout::StripedOver(2)),
            (&[true; 3], Layout::StripedOver(5)),
            (&[true, false, true], Layout::On(NodeId(1))),
        ] {
            let (cluster, inode) = (cluster(devices), InodeId::in_slot(Slot(9), 77));
            for map in [cluster.map(), Arc::new(cluster.map().with_primary(HomeId(7), NodeId(0)))] {
                for first in [0, 5, 1000] {
                    let mut units = Vec::new();
                    for &node in map.nodes() {
                        let of_node = cluster.units_of_homes(layout, inode, |home| map.primary(home) == node);
                        let own = of_node.from(first).take_while(|(index, _)| *index < first + 200);
                        units.extend(own.map(|(index, home)| {
                            assert_eq!(cluster.unit_home(layout, UnitId { inode, index }), home);
                            assert_eq!(map.primary(home), node, "unit {index}");
                            index
                        }));
                    }
                    let nodes = cluster.nodes_of_units(&map, layout, inode, first..first + 200);
                    assert!(nodes.iter().all(|(node, index)| {
                        let of_node =
                            cluster.units_of_homes(layout, inode, |home| map.primary(home) == *node);
                        of_node.from(first).next().map(|(index, _)| index) == Some(*index)
                    }));
                    assert_eq!(nodes.len(), map.primaries(cluster.unit_homes(layout, inode)).len());
                    units.sort_unstable();
                    assert_eq!(units, (first..first + 200).collect::<Vec<_>>());
                }
            }
        }
        let of_homes = |period, remainders: &[u64]| UnitsOfHomes {
            period,
            remainders: remainders.iter().map(|&remainder| (remainder, HomeId(0))).collect(),
        };
        let indexes = |units: UnitsOfHomes, first| {
            units.from(first).take(2).map(|(index, _)| index).collect::<Vec<_>>()
        };
        assert_eq!(indexes(of_homes(1, &[0]), 3), [3, 4]);
        assert_eq!(indexes(of_homes(4, &[]), 3), []);
        assert_eq!(indexes(of_homes(4, &[1]), u64::MAX - 1), []);
    }

    #[test]
    fn a_newer_map_of_the_same_job_replaces_an_older_one() {
        let cluster = cluster(&[true, true]);
        let next = cluster.map().with_primary(HomeId(3), NodeId(0));
        assert_eq!(cluster.primary(HomeId(3)), NodeId(1));
        let changes = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = changes.clone();
        cluster.watch(move || _ = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        assert!(cluster.replace_map(next.clone()) && !cluster.replace_map(next.clone()));
        assert_eq!(changes.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(cluster.route(HomeId(3)), (NodeId(0), next.epoch));
        let initial = |nodes: &[NodeInfo]| HomeMap::initial(nodes, 1).expect("enough nodes");
        let three =
            [&cluster.nodes()[..], &[NodeInfo { id: NodeId(2), ..cluster.nodes()[0].clone() }]].concat();
        let others =
            [initial(&three), initial(&three[..1]), cluster.map().with_primary(HomeId(3), NodeId(2))];
        for other in others {
            let newer = (0..9).fold(other, |map, _| map.with_primary(HomeId(0), map.primary(HomeId(0))));
            assert!(!cluster.replace_map(newer));
        }
    }

    #[test]
    fn nodes_without_a_device_use_their_group() {
        let cluster = cluster(&[true, false, false, true]);
        assert_eq!(cluster.device_of(NodeId(1)), NodeId(0));
        assert_eq!(cluster.device_of(NodeId(2)), NodeId(3));
        let inode = InodeId::local_root(NodeId(2), cluster.device_of(NodeId(2)));
        assert_eq!(cluster.primary(cluster.children_home(inode)), NodeId(3));
        let unit = UnitId { inode, index: 5 };
        assert_eq!(cluster.primary(cluster.unit_home(Layout::Striped, unit)), NodeId(3));
    }

    #[test]
    fn neighbours_are_few_and_reach_all_nodes() {
        for count in [1, 2, 5, 6, 100, 1000] {
            let cluster = cluster(&vec![true; count]);
            let mut steps = 0;
            let (mut reached, mut last) = (vec![false; count], vec![NodeId(0)]);
            reached[0] = true;
            while !last.is_empty() {
                let next = last.iter().flat_map(|node| cluster.neighbours(*node));
                last = next.filter(|node| !std::mem::replace(&mut reached[node.0 as usize], true)).collect();
                steps += 1;
            }
            assert!(reached.iter().all(|is| *is));
            let log = count.next_power_of_two().ilog2() as usize;
            assert!(steps <= log + 1, "{count}: {steps}");
            for node in (0..count as u32).map(NodeId) {
                let neighbours = cluster.neighbours(node);
                assert!(neighbours.len() <= 2 * log && !neighbours.contains(&node));
                assert!(neighbours.iter().all(|other| cluster.neighbours(*other).contains(&node)));
            }
        }
    }

    #[test]
    fn layouts_survive_formatting_and_parsing() {
        for layout in [Layout::Striped, Layout::StripedOver(3), Layout::Local, Layout::On(NodeId(2))] {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        for bad in ["", "stripe", "striped:0", "node:x"] {
            assert!(bad.parse::<Layout>().is_err(), "{bad:?}");
        }
    }
}
