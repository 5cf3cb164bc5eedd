//! Placement of names and data by formula: the data path needs no lookup (BB-3, VO-1).

use crate::ids::{DirOffset, InodeId, JobId, NodeId, Slot, UnitId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Distribution of a file's data over the burst-buffer nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// Units round-robin over all burst-buffer nodes.
    #[default]
    Striped,
    /// Units round-robin over this many burst-buffer nodes; the inode number chooses the first.
    StripedOver(u32),
    /// Of a directory: files created in it are on their creator's node.
    Local,
    /// All units on this node, or on the burst-buffer node of its group.
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

/// A node, as all agents know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number, which is also its index in [`Cluster::nodes`].
    pub id: NodeId,
    /// Host name, for people and for ssh.
    pub host: String,
    /// `address:port` of the agent's fabric end point.
    pub address: String,
    /// Nodes of one group share the group's burst-buffer nodes (BB-2).
    pub group: u32,
    /// Whether the node has a device, which makes it a burst-buffer node.
    pub device: bool,
}

/// The nodes of a job and the functions that place names and data on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The job.
    pub job: JobId,
    nodes: Vec<NodeInfo>,
    device_nodes: Vec<NodeId>,
}

impl Cluster {
    /// A cluster of these nodes, which are numbered in order from 0.
    ///
    /// # Errors
    /// A message for people: no nodes, too many, wrong numbers, or none with a device.
    pub fn new(job: JobId, nodes: Vec<NodeInfo>) -> Result<Self, String> {
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
        Ok(Self { job, nodes, device_nodes })
    }

    /// All nodes, by number.
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    /// The node with this number, if it exists.
    pub fn node(&self, id: NodeId) -> Option<&NodeInfo> {
        self.nodes.get(id.0 as usize)
    }

    /// The burst-buffer nodes.
    pub fn device_nodes(&self) -> &[NodeId] {
        &self.device_nodes
    }

    /// The nodes that stay connected with a node, so that its failure is detected at once. Their numbers differ from
    /// its own by a power of two, modulo the number of nodes. A few such steps reach all nodes.
    pub fn neighbours(&self, node: NodeId) -> Vec<NodeId> {
        let count = self.nodes.len() as u64;
        let steps = (0..u64::BITS).map(|power| 1 << power).take_while(|step| *step < count);
        let around = steps.flat_map(|step| [step, count - step]);
        let mut all: Vec<_> =
            around.map(|step| NodeId(((u64::from(node.0) + step) % count) as u32)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The node that serves a slot.
    pub fn slot_home(&self, slot: Slot) -> NodeId {
        self.device_nodes[usize::from(slot.0) % self.device_nodes.len()]
    }

    /// The node that has an inode's record (for a cached file: its cache record).
    pub fn inode_home(&self, inode: InodeId) -> NodeId {
        inode.pinned_node().unwrap_or_else(|| self.slot_home(inode.slot()))
    }

    /// The node that has the entries, times and counts of a directory that is not sharded.
    pub fn children_home(&self, dir: InodeId) -> NodeId {
        dir.pinned_node().unwrap_or_else(|| self.slot_home(dir.children_slot()))
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

    /// The node that has an entry of `dir`.
    pub fn entry_home(&self, dir: InodeId, offset: DirOffset, sharded: bool) -> NodeId {
        dir.pinned_node().unwrap_or_else(|| self.slot_home(self.entry_slot(dir, offset, sharded)))
    }

    /// The burst-buffer node that serves `node`: itself, else one of its group, else any.
    pub fn device_of(&self, node: NodeId) -> NodeId {
        let Some(info) = self.node(node) else { return self.device_nodes[0] };
        if info.device {
            return node;
        }
        let of_group: Vec<_> =
            self.device_nodes.iter().filter(|id| self.nodes[id.0 as usize].group == info.group).collect();
        let choice = if of_group.is_empty() { self.device_nodes.iter().collect() } else { of_group };
        *choice[node.0 as usize % choice.len()]
    }

    /// The nodes of an inode's units from unit `first` on, until the sequence repeats.
    pub fn unit_turns(&self, layout: Layout, inode: InodeId, first: u64) -> Vec<NodeId> {
        let count = self.device_nodes.len() as u64;
        let turns = match layout {
            _ if inode.pinned_node().is_some() => 1,
            Layout::On(_) => 1,
            Layout::Striped | Layout::Local => count,
            Layout::StripedOver(width) => u64::from(width.max(1)).min(count),
        };
        (first..first.saturating_add(turns))
            .map(|index| self.unit_home(layout, UnitId { inode, index }))
            .collect()
    }

    /// The node of a unit.
    pub fn unit_home(&self, layout: Layout, unit: UnitId) -> NodeId {
        if let Some(node) = unit.inode.pinned_node() {
            return node;
        }
        let count = self.device_nodes.len() as u64;
        let first = xxh3_64(&unit.inode.0.to_be_bytes());
        let place = match layout {
            Layout::On(node) => return self.device_of(node),
            Layout::Striped | Layout::Local => first.wrapping_add(unit.index) % count,
            Layout::StripedOver(width) => {
                let turn = unit.index % u64::from(width.max(1)).min(count);
                first.wrapping_add(turn) % count
            }
        };
        self.device_nodes[place as usize]
    }

    /// The nodes that may have units of a file.
    pub fn unit_homes(&self, layout: Layout, inode: InodeId) -> Vec<NodeId> {
        let mut homes: Vec<_> = (0..self.device_nodes.len() as u64)
            .map(|index| self.unit_home(layout, UnitId { inode, index }))
            .collect();
        homes.sort_unstable();
        homes.dedup();
        homes
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
        Cluster::new(JobId::new("job").expect("valid name"), nodes.collect()).expect("valid cluster")
    }

    #[test]
    fn striped_units_use_all_nodes_round_robin() {
        let cluster = cluster(&[true; 4]);
        let inode = InodeId::in_slot(Slot(9), 77);
        let homes: Vec<_> =
            (0..8).map(|index| cluster.unit_home(Layout::Striped, UnitId { inode, index })).collect();
        assert_eq!(homes[..4], homes[4..]);
        assert_eq!(cluster.unit_homes(Layout::Striped, inode).len(), 4);
        assert_eq!(cluster.unit_homes(Layout::StripedOver(2), inode).len(), 2);
    }

    #[test]
    fn nodes_without_a_device_use_their_group() {
        let cluster = cluster(&[true, false, false, true]);
        assert_eq!(cluster.device_of(NodeId(1)), NodeId(0));
        assert_eq!(cluster.device_of(NodeId(2)), NodeId(3));
        let inode = InodeId::local_root(NodeId(2), cluster.device_of(NodeId(2)));
        assert_eq!(cluster.children_home(inode), NodeId(3));
        assert_eq!(cluster.unit_home(Layout::Striped, UnitId { inode, index: 5 }), NodeId(3));
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
