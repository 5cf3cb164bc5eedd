//! Homes that lack a replica are copied to other nodes.

use super::*;

/// Nodes on hosts of their own, in groups of two.
pub(super) fn infos(count: u32) -> Vec<NodeInfo> {
    let node = |id| NodeInfo {
        id: NodeId(id),
        host: format!("host{id}"),
        address: String::new(),
        group: id / 2,
        device: true,
    };
    (0..count).map(node).collect()
}

/// An authority that repairs, and whose nodes answer at once.
pub(super) struct Repaired {
    pub(super) authority: Authority,
    pub(super) now: Duration,
    pub(super) failed: BTreeSet<NodeId>,
    /// Whether primaries report copies as soon as they are listed.
    pub(super) copies: bool,
    useless: Vec<(HomeId, NodeId)>,
    pub(super) pinned: Vec<HomeId>,
}

impl Repaired {
    pub(super) fn new(count: u32) -> Self {
        Self::of(infos(count), 2)
    }

    pub(super) fn of(nodes: Vec<NodeInfo>, replicas: u32) -> Self {
        let now = ms(10_000);
        let map = HomeMap::initial(&nodes, replicas).expect("enough nodes");
        let authority =
            Authority::new(map, nodes.iter().map(|info| info.id), now).repairing(replicas, &nodes);
        Self {
            authority,
            now,
            failed: BTreeSet::new(),
            copies: true,
            useless: Vec::new(),
            pinned: Vec::new(),
        }
    }

    pub(super) fn fail(&mut self, node: u32) {
        self.failed.insert(NodeId(node));
        self.authority.ended(NodeId(node));
    }

    /// Decides in intervals for a time, and returns the changes.
    pub(super) fn run(&mut self, time: Duration) -> Vec<MapChange> {
        let (end, mut changes) = (self.now + time, Vec::new());
        while self.now < end {
            self.now += MAP_LEASE_INTERVAL;
            changes.extend(self.authority.tick(self.now));
            self.answer_all();
        }
        changes
    }

    /// Has each node answer a message.
    pub(super) fn answer_all(&mut self) {
        let map = self.authority.map().clone();
        let nodes: Vec<_> = self.authority.members.keys().copied().collect();
        for node in nodes.into_iter().filter(|node| !self.failed.contains(node)) {
            let Some(LeaseMessage { number, .. }) = self.authority.message(node, self.now) else {
                continue;
            };
            let of_node = |(home, _): &&(HomeId, NodeId)| map.primary(*home) == node;
            let copied = map.all_joining().iter().filter(|_| self.copies).filter(of_node).copied();
            let answer = LeaseAnswer {
                number,
                epoch: map.epoch,
                failed_copies: self.useless.iter().filter(of_node).copied().collect(),
                copied: copied.collect(),
                pinned: self.pinned.iter().copied().filter(|home| map.primary(*home) == node).collect(),
                ..LeaseAnswer::default()
            };
            self.authority.answered(node, answer, self.now);
        }
    }
}

#[test]
fn a_lost_copy_is_replaced_on_the_nodes_that_are_left() {
    let mut bed = Repaired::new(6);
    assert_eq!(bed.run(ms(10_000)), [], "nothing lacks a replica");
    let before = bed.authority.map().clone();
    bed.fail(5);
    let changes = bed.run(ms(2000));
    assert_eq!(changes, [MapChange::Excluded(NodeId(5), Cause::Failed)], "others may fail at the same time");
    let changes = bed.run(ms(12_000));
    let map = bed.authority.map();
    assert!(map.is_valid() && map.all_joining().is_empty());
    let lost: Vec<_> = before.homes().filter(|home| before.is_on(*home, NodeId(5))).collect();
    let copied = |change: &&MapChange| matches!(change, MapChange::Copied(..));
    // Some of the others move, so that the nodes have even shares.
    assert!(changes.iter().filter(copied).count() >= lost.len());
    for home in map.homes() {
        let [backup] = map.backups(home) else { panic!("{home} has {:?}", map.backups(home)) };
        // Nodes 4 and 5 were one group: the others are in other groups than the primary.
        assert!(map.primary(home).0 / 2 != backup.0 / 2, "{home}");
    }
    let load = |node| map.homes().filter(|home| map.is_on(*home, node)).count();
    let loads: Vec<_> = (0..5).map(|node| load(NodeId(node))).collect();
    assert!(loads.iter().max() <= loads.iter().min().map(|least| least + 12).as_ref(), "{loads:?}");
}

#[test]
fn a_home_is_not_copied_again_at_once_to_a_node_that_cannot_store_it() {
    let mut bed = Repaired::new(3);
    bed.run(ms(1000));
    bed.fail(2);
    bed.copies = false;
    bed.run(ms(4000));
    let joining = bed.authority.map().all_joining().to_vec();
    assert!(!joining.is_empty());
    bed.useless = joining[..1].to_vec();
    let (home, node) = joining[0];
    assert!(bed.run(ms(800)).contains(&MapChange::Dropped(home, node)));
    bed.useless.clear();
    bed.run(ms(20_000));
    assert_eq!(bed.authority.map().joining(home), None, "there is no other node");
    bed.run(ms(20_000));
    assert_eq!(bed.authority.map().joining(home), Some(node));
    // With the primary, the copies that it makes are given up.
    let primary = bed.authority.map().primary(home);
    bed.fail(primary.0);
    let changes = bed.run(ms(800));
    assert_eq!(changes, [MapChange::Excluded(primary, Cause::Failed)]);
    assert_eq!(bed.authority.map().joining(home), None);
}
