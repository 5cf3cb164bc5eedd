//! Caches attributes of packed files as their entries in the container have them.

use std::collections::BTreeMap;
use tameike_container::format::external::{ContentLocation, Identity};
use tameike_container::{IndexEntry, Node};
use tameike_core::wire::pack::PackedStat;

/// Cached files, at most. A full cache is cleared.
const FILES_MAX: usize = 64 << 10;

/// Attributes of packed files by path.
#[derive(Default)]
pub struct AttributeCache {
    stats: BTreeMap<Vec<u8>, PackedStat>,
}

impl AttributeCache {
    /// The cached attributes of the file at a path.
    pub fn get(&self, path: &[u8]) -> Option<&PackedStat> {
        self.stats.get(path)
    }

    /// Caches the attributes of an entry, and returns them.
    pub fn insert(&mut self, entry: &IndexEntry, node: &Node) -> PackedStat {
        let stat = packed_stat(&identity_of(entry, node), node, node.size, 1);
        if self.stats.len() >= FILES_MAX {
            self.stats.clear();
        }
        self.stats.insert(entry.path.clone(), stat.clone());
        stat
    }

    /// Drops the attributes of a path.
    pub fn remove(&mut self, path: &[u8]) {
        self.stats.remove(path);
    }

    /// Drops all attributes.
    pub fn clear(&mut self) {
        self.stats.clear();
    }
}

/// The identity in an entry. An entry that another tool packed has none: its number is derived from its location.
pub fn identity_of(entry: &IndexEntry, node: &Node) -> Identity {
    let location = u64::from(entry.lane.subfile) << 52 ^ u64::from(entry.lane.lane) << 46 ^ entry.address;
    Identity::told(node).unwrap_or(Identity {
        number: location,
        ctime: node.mtime,
        place: ContentLocation::Internal,
    })
}

/// The attributes of a file with this size and link count.
pub fn packed_stat(
    &Identity { number, ctime, place }: &Identity,
    node: &Node,
    size: u64,
    nlink: u32,
) -> PackedStat {
    let is_external = place != ContentLocation::Internal;
    let &Node { mode, uid, gid, atime, mtime, .. } = node;
    PackedStat { number, mode, uid, gid, size, nlink, atime, mtime, ctime, is_external }
}
