//! Checks that the tables of all nodes are consistent while no operation is pending.

use super::world::World;
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::codec::decode;
use tameike_core::wire::meta::Target;
use tameike_core::{DirOffset, FileKind, HomeId, InodeId, NodeId, View};
use tameike_store::meta::record::{DirectoryRecord, InodeRecord};
use tameike_store::table::{HomeTable, ReadTable, homes, prefix};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// The records of a prefix on a node, by home.
fn rows(world: &World, node: usize, prefix: u8) -> Vec<(HomeId, Vec<u8>, Vec<u8>)> {
    let read = world.ledger(node).read(|table| {
        let mut all = Vec::new();
        for home in homes(table)? {
            let rows = HomeTable::new(home, table).scan(&[prefix], &[prefix + 1], usize::MAX)?;
            all.extend(rows.into_iter().map(|(key, value)| (home, key, value)));
        }
        Ok(all)
    });
    read.unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

struct Name {
    dir: InodeId,
    target: Target,
}

/// Panics if a record is at the wrong home, or records contradict each other.
pub(super) fn check(world: &World) {
    let (mut inodes, mut names, mut children) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    for node in 0..world.count() {
        for (prefix, what) in [
            (prefix::INTENT, "a pending operation"),
            (prefix::TREE_LOCK, "the lock on the tree"),
            (prefix::ORPHAN, "an unlinked inode"),
            (prefix::TRUNCATION, "a pending truncation"),
        ] {
            assert!(rows(world, node, prefix).is_empty(), "node {node} still has {what}");
        }
        let mut counts = [0; View::ALL.len()];
        for (home, key, value) in rows(world, node, prefix::INODE) {
            let inode = InodeId(number(&key[1..]));
            assert_eq!(world.cluster.inode_home(inode), home, "home of {inode}");
            assert_eq!(world.cluster.primary(home), NodeId(node as u32), "node of {home}");
            inodes.insert(inode, decode::<InodeRecord>(&value).unwrap());
            counts[inode.view().index()] += 1;
        }
        let counted = View::ALL.map(|view| world.service(node).inodes(view));
        assert_eq!(counted, View::ALL.map(|view| counts[view.index()]), "inodes of node {node}");
        for (home, key, value) in rows(world, node, prefix::DIRECTORY) {
            let dir = InodeId(number(&key[1..]));
            children.insert((dir, home), decode::<DirectoryRecord>(&value).unwrap());
        }
        for (home, key, value) in rows(world, node, prefix::ENTRY) {
            let (dir, offset) = (InodeId(number(&key[1..])), DirOffset(number(&key[9..])));
            assert_eq!(offset, DirOffset::of(dir, &key[17..]));
            names.push((home, offset, Name { dir, target: decode(&value).unwrap() }));
        }
    }
    check_locations(world, &names, &children);
    let names: Vec<_> = names.into_iter().map(|(.., name)| name).collect();
    check_links(&inodes, &names);
    check_tree(&inodes);
    for node in 0..world.count() {
        for inode in world.units(node).keys() {
            assert!(inodes.contains_key(inode), "node {node} has units of the removed {inode}");
        }
        world.service(node).assert_idle();
    }
    for ((dir, home), record) in &children {
        let sealed = record.sealed.is_some();
        assert!(!(sealed && inodes.contains_key(dir)), "{dir} is sealed at {home}, but not removed");
        let is_own = world.cluster.inode_home(*dir) == *home;
        assert!(!(sealed && is_own), "the seal of {dir} remains after its inode was removed");
    }
}

fn check_locations(
    world: &World,
    names: &[(HomeId, DirOffset, Name)],
    children: &BTreeMap<(InodeId, HomeId), DirectoryRecord>,
) {
    let mut counts = BTreeMap::<_, (u64, u64)>::new();
    for (home, offset, Name { dir, target }) in names {
        let sharded = children[&(*dir, world.cluster.children_home(*dir))].sharded;
        assert_eq!(world.cluster.entry_home(*dir, *offset, sharded), *home, "an entry of {dir}");
        let count = counts.entry((*dir, *home)).or_default();
        count.0 += 1;
        count.1 += u64::from(target.kind == FileKind::Directory);
    }
    for (key, record) in children {
        let count = counts.get(key).copied().unwrap_or_default();
        assert_eq!((record.entries, record.subdirs), count, "counts of {} at {}", key.0, key.1);
    }
}

fn check_links(inodes: &BTreeMap<InodeId, InodeRecord>, names: &[Name]) {
    let mut links = BTreeMap::<InodeId, u32>::new();
    for Name { dir, target } in names {
        let record = inodes.get(&target.inode);
        let record =
            record.unwrap_or_else(|| panic!("a name in {dir} refers to the missing {}", target.inode));
        assert_eq!(record.kind, target.kind);
        assert!(inodes.get(dir).is_some_and(|dir| dir.kind == FileKind::Directory), "{dir} has entries");
        if record.kind == FileKind::Directory {
            assert_eq!(record.parent, *dir, "{} is in {dir}", target.inode);
        }
        *links.entry(target.inode).or_default() += 1;
    }
    for (inode, record) in inodes {
        let is_root = record.parent == *inode;
        assert_eq!(links.get(inode).copied().unwrap_or(u32::from(is_root)), record.links, "links of {inode}");
        assert!(record.kind != FileKind::Directory || record.links == 1, "{inode} has one name");
    }
}

fn check_tree(inodes: &BTreeMap<InodeId, InodeRecord>) {
    let directories = inodes.iter().filter(|(_, record)| record.kind == FileKind::Directory);
    for (&start, _) in directories {
        let (mut dir, mut seen) = (start, BTreeSet::new());
        while inodes[&dir].parent != dir {
            assert!(seen.insert(dir), "{start} is in a loop");
            dir = inodes[&dir].parent;
        }
    }
}

/// Returns all records of the nodes' tables.
pub(super) fn tables(world: &World) -> Vec<Rows> {
    (0..world.count())
        .map(|node| world.ledger(node).read(|table| table.scan(&[1], &[255], usize::MAX)).unwrap())
        .collect()
}

/// Returns the unlinked inodes, which are kept while they are open.
pub(super) fn orphans(world: &World) -> Vec<InodeId> {
    let all = (0..world.count()).flat_map(|node| rows(world, node, prefix::ORPHAN));
    all.map(|(_, key, _)| InodeId(number(&key[1..]))).collect()
}
