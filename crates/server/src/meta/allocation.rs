//! Inode allocation: the number of a new inode, which for a directory also selects the home of its entries
//! ([decision 0009](../../../../docs/decisions/0009-hash-placed-directory-entries.md)).

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::{DIRECTORY_MAKERS_MAX, LOCAL_SUBDIRECTORIES_MAX};
use tameike_core::wire::meta::EntryName;
use tameike_core::{Cluster, HomeId, InodeId, NodeId};
use tameike_store::meta::new_inode_id;

/// Numbers to try for a directory, per node with a device. None of them selects the wanted node once in 3000 directories.
const DRAWS_PER_NODE: usize = 8;
/// Numbers to try at least, for the home of the parent. None of them selects that once in 3000 directories of a job with 64 homes.
const DRAWS_MIN: usize = 512;
/// Part of an incarnation's 2^32 numbers after which the allocator no longer selects homes, since that uses up many numbers.
const SELECTED_BEFORE: u64 = 1 << 31;

/// Allocates inode numbers.
pub(super) struct InodeAllocator {
    first: u64,
    next: AtomicU64,
    /// Directories that each node created in a directory, up to [`LOCAL_SUBDIRECTORIES_MAX`].
    made: Mutex<BTreeMap<(InodeId, NodeId), u32>>,
}

impl InodeAllocator {
    pub(super) fn new(first: u64) -> Self {
        Self { first, next: AtomicU64::new(first), made: Mutex::default() }
    }

    /// Allocates a number.
    pub(super) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Allocates a number for a directory that `maker` creates at `home`. The first directories that a node creates in a parent get their
    /// entries on the maker's device node, and there at the home of their own entry if it serves that: then renames and removals
    /// concern one home. Others get them anywhere, unless there is only one node.
    pub(super) fn next_directory(
        &self,
        cluster: &Cluster,
        home: HomeId,
        (entry, sharded): (&EntryName, bool),
        maker: NodeId,
    ) -> u64 {
        let (map, mut number) = (cluster.map(), self.next());
        // Without other nodes there is nothing to spread.
        if map.nodes().len() > 1 && !self.is_near(entry.dir, maker) {
            return number;
        }
        let wanted = cluster.device_of(maker);
        let is_served = map.primary(home) == wanted;
        let mut on_node = None;
        for _ in 0..DRAWS_MIN.max(DRAWS_PER_NODE * cluster.device_nodes().len()) {
            if number - self.first >= SELECTED_BEFORE {
                break;
            }
            let drawn = cluster.children_home(new_inode_id(entry, sharded, number));
            if drawn == home && is_served {
                return number;
            }
            if map.primary(drawn) == wanted {
                on_node.get_or_insert(number);
                if !is_served {
                    break;
                }
            }
            number = self.next();
        }
        on_node.unwrap_or(number)
    }

    fn is_near(&self, parent: InodeId, maker: NodeId) -> bool {
        parent.pinned_node().is_none()
            && self.made.lock().get(&(parent, maker)).is_none_or(|made| *made < LOCAL_SUBDIRECTORIES_MAX)
    }

    /// Counts a directory that `maker` created in `parent`.
    pub(super) fn made_directory(&self, parent: InodeId, maker: NodeId) {
        let mut made = self.made.lock();
        if made.len() >= DIRECTORY_MAKERS_MAX {
            made.clear();
        }
        let count = made.entry((parent, maker)).or_default();
        *count = LOCAL_SUBDIRECTORIES_MAX.min(*count + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
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
        Cluster::new(JobId::new("job").expect("valid name"), nodes.collect(), 1).expect("valid cluster")
    }

    fn entry(parent: InodeId) -> EntryName {
        EntryName { dir: parent, name: b"new".to_vec() }
    }

    /// Returns the home of a new entry of `parent`, and the homes of entries of `count` directories that `maker` creates there.
    fn homes(
        allocator: &InodeAllocator,
        cluster: &Cluster,
        (parent, sharded): (InodeId, bool),
        maker: u32,
        count: u32,
    ) -> (HomeId, Vec<HomeId>) {
        let entry = entry(parent);
        let home = cluster.entry_home(parent, entry.offset(), sharded);
        let make = |_| {
            let number = allocator.next_directory(cluster, home, (&entry, sharded), NodeId(maker));
            allocator.made_directory(parent, NodeId(maker));
            cluster.children_home(new_inode_id(&entry, sharded, number))
        };
        (home, (0..count).map(make).collect())
    }

    #[test]
    fn the_first_directories_of_a_node_have_their_entries_there_and_others_anywhere() {
        let (allocator, cluster) = (InodeAllocator::new(FIRST), cluster(&[true; 16]));
        for (parent, sharded) in [(InodeId::ROOT, false), (InodeId::in_slot(Slot(7), 9), true)] {
            for maker in [5, 0] {
                let (home, near) =
                    homes(&allocator, &cluster, (parent, sharded), maker, LOCAL_SUBDIRECTORIES_MAX);
                assert!(near.iter().all(|&near| cluster.primary(near) == NodeId(maker)), "{near:?}");
                let at_parent = near.iter().filter(|&&near| near == home).count();
                match cluster.primary(home) == NodeId(maker) {
                    true => assert!(at_parent > near.len() / 2, "{near:?}"),
                    false => assert!(at_parent == 0 && near.iter().collect::<BTreeSet<_>>().len() > 4),
                }
                let (_, mut others) = homes(&allocator, &cluster, (parent, sharded), maker, 100);
                others.sort_unstable();
                others.dedup();
                assert!(others.len() > 10, "{others:?}");
            }
        }
    }

    #[test]
    fn a_node_without_a_device_uses_its_device_node() {
        let (allocator, cluster) = (InodeAllocator::new(FIRST), cluster(&[true, false, true, false]));
        let (_, near) = homes(&allocator, &cluster, (InodeId::ROOT, false), 3, 20);
        assert!(near.iter().all(|&near| cluster.primary(near) == cluster.device_of(NodeId(3))), "{near:?}");
    }

    #[test]
    fn node_selection_ends_before_numbers_run_out() {
        let (allocator, cluster) = (InodeAllocator::new(FIRST), cluster(&[true; 64]));
        allocator.next.store(FIRST + SELECTED_BEFORE, Ordering::Relaxed);
        for _ in 0..50 {
            allocator.next_directory(&cluster, HomeId(1), (&entry(InodeId::ROOT), false), NodeId(1));
        }
        assert_eq!(allocator.next(), FIRST + SELECTED_BEFORE + 50);
    }

    #[test]
    fn the_table_of_makers_is_bounded() {
        let allocator = InodeAllocator::new(FIRST);
        for maker in 0..2 * DIRECTORY_MAKERS_MAX as u32 {
            allocator.made_directory(InodeId::ROOT, NodeId(maker));
        }
        assert!(allocator.made.lock().len() <= DIRECTORY_MAKERS_MAX);
    }
}
