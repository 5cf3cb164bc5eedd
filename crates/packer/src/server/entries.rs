//! Attributes of packed files by their entries in the container.

use tameike_container::format::external::{ContentLocation, Identity};
use tameike_container::{IndexEntry, Node};
use tameike_core::FileKind;
use tameike_core::wire::pack::PackedStat;

/// Whether an entry is that of a file.
pub fn is_file(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.kind == FileKind::File)
}

/// The identity in an entry. An entry that another tool packed has none: its number is derived from its location.
pub fn identity_of(entry: &IndexEntry, node: &Node) -> Identity {
    let address = u64::from(entry.lane.subfile) << 52 ^ u64::from(entry.lane.lane) << 46 ^ entry.address;
    Identity::decode(node).unwrap_or(Identity {
        number: address,
        ctime: node.mtime,
        location: ContentLocation::Internal,
    })
}

/// The attributes of a file with this size and link count.
pub fn packed_stat(
    &Identity { number, ctime, location }: &Identity,
    node: &Node,
    size: u64,
    nlink: u32,
) -> PackedStat {
    let is_external = location != ContentLocation::Internal;
    let &Node { mode, uid, gid, atime, mtime, .. } = node;
    PackedStat { number, mode, uid, gid, size, nlink, atime, mtime, ctime, is_external }
}
