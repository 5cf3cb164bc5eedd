//! Numbers of the inodes that are born on this node, and with the number of a directory the node that will keep its
//! entries ([decision 0009](../../../../docs/decisions/0009-hash-placed-directory-entries.md)).

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::{DIRECTORY_MAKERS_MAX, NEAR_DIRECTORIES_MAX};
use tameike_core::wire::meta::EntryName;
use tameike_core::{Cluster, InodeId, NodeId};
use tameike_store::meta::born;

/// Numbers drawn for one directory, for each burst-buffer node there is: that none of them leads to the node that is
/// wanted happens once in 3000 times.
const DRAWS_PER_NODE: usize = 8;
/// Numbers of one incarnation; behind this part of them directories are not placed any more, which takes many.
const PLACED_BEFORE: u64 = 1 << 31;

/// Gives numbers out.
pub(super) struct Births {
    /// The first of this incarnation.
    first: u64,
    next: AtomicU64,
    /// How many directories in a directory a node has made, up to [`NEAR_DIRECTORIES_MAX`].
    made: Mutex<BTreeMap<(InodeId, NodeId), u32>>,
}

impl Births {
    pub(super) fn new(first: u64) -> Self {
        Self { first, next: AtomicU64::new(first), made: Mutex::default() }
    }

    /// A number for anything.
    pub(super) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a directory that `maker` asks for: its entries will be on the maker's own burst-buffer node if it is one
    /// of the first that this node makes in their directory, else on any.
    pub(super) fn of_directory(
        &self,
        cluster: &Cluster,
        entry: &EntryName,
        wide: bool,
        maker: NodeId,
    ) -> u64 {
        let mut number = self.next();
        if !self.is_near(entry.dir, maker) {
            return number;
        }
        let wanted = cluster.device_of(maker);
        for _ in 0..DRAWS_PER_NODE * cluster.device_nodes().len() {
            if number - self.first >= PLACED_BEFORE
                || cluster.children_home(born(entry, wide, number)) == wanted
            {
                break;
            }
            number = self.next();
        }
        number
    }

    fn is_near(&self, parent: InodeId, maker: NodeId) -> bool {
        parent.pinned_node().is_none()
            && self.made.lock().get(&(parent, maker)).is_none_or(|made| *made < NEAR_DIRECTORIES_MAX)
    }

    /// `maker` has made a directory in `parent`.
    pub(super) fn made_directory(&self, parent: InodeId, maker: NodeId) {
        let mut made = self.made.lock();
        if made.len() >= DIRECTORY_MAKERS_MAX {
            made.clear();
        }
        let count = made.entry((parent, maker)).or_default();
        *count = NEAR_DIRECTORIES_MAX.min(*count + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::{JobId, NodeInfo, Slot};

    const FIRST: u64 = 3 << 32;

    fn cluster(devices: &[bool]) -> Cluster {
        let nodes = devices.iter().enumerate().map(|(id, &device)| NodeInfo {
            id: NodeId(id as u32),
            host: String::new(),
            address: String::new(),
            group: 0,
            device,
        });
        Cluster::new(JobId::new("job").expect("valid name"), nodes.collect()).expect("valid cluster")
    }

    fn entry(parent: InodeId) -> EntryName {
        EntryName { dir: parent, name: b"new".to_vec() }
    }

    /// Where the entries of directories will be that `maker` makes in `parent`, one after the other.
    fn homes(
        births: &Births,
        cluster: &Cluster,
        (parent, wide): (InodeId, bool),
        maker: u32,
        count: u32,
    ) -> Vec<NodeId> {
        let make = |_| {
            let number = births.of_directory(cluster, &entry(parent), wide, NodeId(maker));
            births.made_directory(parent, NodeId(maker));
            cluster.children_home(born(&entry(parent), wide, number))
        };
        (0..count).map(make).collect()
    }

    #[test]
    fn the_first_directories_of_each_node_are_near_it_and_others_anywhere() {
        let (births, cluster) = (Births::new(FIRST), cluster(&[true; 16]));
        for (parent, wide) in [(InodeId::ROOT, false), (InodeId::in_slot(Slot(7), 9), true)] {
            for maker in [5, 0] {
                let near = homes(&births, &cluster, (parent, wide), maker, NEAR_DIRECTORIES_MAX);
                assert!(near.iter().all(|&home| home == NodeId(maker)), "{near:?}");
                let mut others = homes(&births, &cluster, (parent, wide), maker, 100);
                others.sort_unstable();
                others.dedup();
                assert!(others.len() > 10, "{others:?}");
            }
        }
    }

    #[test]
    fn who_has_no_device_is_near_the_node_that_serves_it() {
        let (births, cluster) = (Births::new(FIRST), cluster(&[true, false, true, false]));
        let near = homes(&births, &cluster, (InodeId::ROOT, false), 3, 20);
        assert_eq!(near, vec![cluster.device_of(NodeId(3)); 20]);
    }

    #[test]
    fn numbers_are_not_used_up_for_places() {
        let (births, cluster) = (Births::new(FIRST), cluster(&[true; 64]));
        births.next.store(FIRST + PLACED_BEFORE, Ordering::Relaxed);
        for _ in 0..50 {
            births.of_directory(&cluster, &entry(InodeId::ROOT), false, NodeId(1));
        }
        assert_eq!(births.next(), FIRST + PLACED_BEFORE + 50);
    }

    #[test]
    fn counts_of_makers_are_bounded() {
        let births = Births::new(FIRST);
        for maker in 0..2 * DIRECTORY_MAKERS_MAX as u32 {
            births.made_directory(InodeId::ROOT, NodeId(maker));
        }
        assert!(births.made.lock().len() <= DIRECTORY_MAKERS_MAX);
    }
}
