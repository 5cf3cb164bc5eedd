//! Checks of contradictory records, by kind.

use super::bed::{Bed, CACHED, HOME, NOW, entry};
use super::{CLEAN, DIRTY};
use crate::ledger::kv::Changes;
use crate::meta::query;
use crate::meta::record::{DirectoryRecord, InodeRecord, Intent, ShardRecord, Truncation};
use crate::table::{HomeTable, key_of_home, prefix};
use tameike_core::wire::codec::{decode, encode};
use tameike_core::wire::meta::Target;
use tameike_core::{FileKind, Generation, InodeId, Layout, OperationId};

/// The key of a record of the home.
fn of_home(key: &[u8]) -> Vec<u8> {
    key_of_home(HOME, key)
}

fn numbered(prefix: u8, inode: InodeId) -> Vec<u8> {
    of_home(&[&[prefix][..], &inode.0.to_be_bytes()].concat())
}

fn entry_key(dir: InodeId, name: &str) -> Vec<u8> {
    let place = entry(dir, name).offset().0.to_be_bytes();
    [&numbered(prefix::ENTRY, dir)[..], &place, name.as_bytes()].concat()
}

fn unit_key(prefix: u8, inode: InodeId, index: u64) -> Vec<u8> {
    [&[prefix][..], &inode.0.to_be_bytes(), &index.to_be_bytes()].concat()
}

type Get<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Makes one change to a store and returns the findings. Verifies that the repaired store opens and has the bytes of
/// the cache view.
fn after(change: impl FnOnce(&Bed, Get<'_>) -> Changes) -> Vec<String> {
    let bed = Bed::new(true);
    bed.tamper(|get| change(&bed, get));
    let found = bed.found();
    bed.reopen(|store| {
        if !found.iter().any(|found| found.contains("out/result")) {
            assert_eq!(bed.read(store, DIRTY), [Some(9); 10_000]);
            assert_eq!(bed.read(store, CLEAN), [Some(5); 10_000]);
        }
    });
    found
}

fn set(key: Vec<u8>, value: Vec<u8>) -> Changes {
    Changes::from([(key, Some(value))])
}

fn remove(key: Vec<u8>) -> Changes {
    Changes::from([(key, None)])
}

fn change_inode(inode: InodeId, get: Get<'_>, change: impl FnOnce(&mut InodeRecord)) -> Changes {
    let key = numbered(prefix::INODE, inode);
    let mut record: InodeRecord = decode(&get(&key)).unwrap();
    change(&mut record);
    set(key, encode(&record).unwrap())
}

#[test]
fn names_must_have_inodes() {
    let gone = after(|bed, _| remove(numbered(prefix::INODE, bed.note)));
    assert!(
        gone[0].starts_with("lost the name \"note\" in directory inode 1 is dangling: inode "),
        "{gone:?}"
    );
    assert!(gone.iter().any(|found| found.contains("wrong directory inode 1 counts 3 entries")), "{gone:?}");
    assert!(gone.iter().any(|found| found.contains("1 contents or extended attributes belong to no inode")));
    let kind = after(|bed, get| change_inode(bed.note, get, |record| record.kind = FileKind::Fifo));
    assert!(kind[0].contains("is of another kind"), "{kind:?}");
    let place = after(|_, get| {
        let key = entry_key(InodeId::ROOT, "note");
        let mut moved = key.clone();
        moved[15] ^= 1;
        Changes::from([(moved, Some(get(&key))), (key, None)])
    });
    assert!(
        place[0].starts_with("lost the name \"note\" in directory inode 1 is lost: its key"),
        "{place:?}"
    );
    assert!(place.iter().any(|found| found.contains("has no name on any node")), "{place:?}");
    let damaged = after(|bed, _| set(numbered(prefix::INODE, bed.dir), vec![0xFF; 9]));
    assert!(damaged[0].starts_with("lost the inode record of inode "), "{damaged:?}");
    assert!(damaged.iter().any(|found| found.contains("\"link\"") && found.contains("its directory")));
}

#[test]
fn wrong_derived_records_are_repaired_without_loss() {
    let only = |found: Vec<String>, message: &str| {
        assert!(
            matches!(found.as_slice(), [one] if one.starts_with("wrong ") && one.contains(message)),
            "{found:?}"
        );
    };
    let counts = after(|bed, get| {
        let key = numbered(prefix::DIRECTORY, bed.dir);
        let mut record: DirectoryRecord = decode(&get(&key)).unwrap();
        record.entries = 9;
        set(key, encode(&record).unwrap())
    });
    only(counts, "counts 9 entries and 0 directories among them, but has 1 and 0 at home 0");
    only(
        after(|bed, _| remove(numbered(prefix::DIRECTORY, bed.dir))),
        "has 1 entries at home 0 and no counts",
    );
    only(after(|bed, _| set(numbered(prefix::DIRECTORY, bed.dir), vec![7])), "the counts of directory");
    only(
        after(|bed, get| change_inode(bed.data, get, |record| record.links = 4)),
        "counts 4 links, but has 1 names",
    );
    only(after(|_, _| set(numbered(prefix::ORPHAN, InodeId(77)), Vec::new())), "orphan marks");
    only(after(|bed, _| set(numbered(prefix::CONTENT, bed.data), vec![1])), "belong to no inode");
    only(
        after(|bed, get| change_inode(bed.note, get, |record| record.size = 2)),
        "has size 2, but 5 bytes of content",
    );
    only(after(|_, _| remove(unit_key(prefix::DIRTY, CACHED, 0))), "1 marks of dirty units");
    only(after(|_, _| set(unit_key(prefix::DIRTY, CACHED, 2), Vec::new())), "1 marks of dirty units");
    let lock = OperationId { home: HOME, sequence: 3 };
    only(
        after(|_, _| set(of_home(&[prefix::TREE_LOCK]), encode(&lock).unwrap())),
        "held by operation 3 of home 0, which has finished",
    );
    let starts = after(|_, get| {
        let mut shard: ShardRecord = decode(&get(&of_home(&[prefix::SHARD]))).unwrap();
        shard.incarnation = 0;
        set(of_home(&[prefix::SHARD]), encode(&shard).unwrap())
    });
    only(starts, "inode numbers could be allocated twice");
}

/// Adds the directory `below` to `dir`.
fn below(bed: &Bed, get: Get<'_>) -> (InodeId, Changes) {
    let below = InodeId(bed.dir.0 + 50);
    let record: InodeRecord = decode(&get(&numbered(prefix::INODE, bed.dir))).unwrap();
    let record = InodeRecord { parent: bed.dir, ..record };
    let target = Target { inode: below, kind: FileKind::Directory };
    let counts: DirectoryRecord = decode(&get(&numbered(prefix::DIRECTORY, bed.dir))).unwrap();
    let counts = DirectoryRecord { entries: counts.entries + 1, subdirs: 1, ..counts };
    let changes = [
        (numbered(prefix::INODE, below), encode(&record).unwrap()),
        (entry_key(bed.dir, "below"), encode(&target).unwrap()),
        (numbered(prefix::DIRECTORY, bed.dir), encode(&counts).unwrap()),
    ];
    (below, changes.map(|(key, value)| (key, Some(value))).into())
}

fn children(entries: u64) -> Vec<u8> {
    encode(&DirectoryRecord { entries, subdirs: entries, ..DirectoryRecord::default() }).unwrap()
}

#[test]
fn directories_have_one_name_and_form_no_cycles() {
    let up = |bed: &Bed| encode(&Target { inode: bed.dir, kind: FileKind::Directory }).unwrap();
    let whole = after(|bed, get| below(bed, get).1);
    assert_eq!(whole, Vec::<String>::new());
    // A directory below itself.
    let looped = after(|bed, get| {
        let (below, mut changes) = below(bed, get);
        changes.insert(entry_key(below, "up"), Some(up(bed)));
        changes.insert(numbered(prefix::DIRECTORY, below), Some(children(1)));
        changes
    });
    assert!(looped[0].starts_with("wrong the name \"up\" in directory inode "), "{looped:?}");
    assert!(looped[0].ends_with("which is in inode 1: a directory must have one name"));
    assert!(looped.iter().all(|found| found.starts_with("wrong ")), "{looped:?}");
    // The root below another directory.
    let root = after(|bed, get| {
        let target = Target { inode: InodeId::ROOT, kind: FileKind::Directory };
        let counts: DirectoryRecord = decode(&get(&numbered(prefix::DIRECTORY, bed.dir))).unwrap();
        let counts = DirectoryRecord { entries: counts.entries + 1, subdirs: 1, ..counts };
        Changes::from([
            (entry_key(bed.dir, "top"), Some(encode(&target).unwrap())),
            (numbered(prefix::DIRECTORY, bed.dir), Some(encode(&counts).unwrap())),
        ])
    });
    assert!(root[0].starts_with("wrong the name \"top\" in directory inode "), "{root:?}");
    // A cycle of two directories that no path reaches.
    let bed = Bed::new(true);
    bed.tamper(|get| {
        let (below, mut changes) = below(&bed, get);
        changes.extend(change_inode(bed.dir, get, |record| record.parent = below));
        changes.insert(entry_key(InodeId::ROOT, "dir"), None);
        changes.insert(entry_key(below, "up"), Some(up(&bed)));
        changes.insert(numbered(prefix::DIRECTORY, below), Some(children(1)));
        changes
    });
    let cycle = bed.found();
    assert!(cycle[0].starts_with("wrong directories form a cycle that no path reaches: "), "{cycle:?}");
    assert!(cycle.iter().all(|found| found.starts_with("wrong ")), "nothing is lost: {cycle:?}");
    bed.reopen(|store| {
        let name = format!("lost+found-{:016x}", bed.dir.0);
        let target = store
            .ledger
            .read(|table| query::entry(&HomeTable::new(HOME, table), &entry(InodeId::ROOT, &name)))
            .unwrap();
        assert_eq!(target.map(|target| target.inode), Some(bed.dir));
        let link = entry(bed.dir, "link");
        let link = store.ledger.read(|table| query::entry(&HomeTable::new(HOME, table), &link));
        assert!(link.unwrap().is_some());
    });
    let astray = after(|bed, get| change_inode(bed.dir, get, |record| record.parent = InodeId(99)));
    assert!(
        matches!(astray.as_slice(), [one] if one.contains("has parent inode 63, but its name is in inode 1")),
        "{astray:?}"
    );
}

#[test]
fn names_below_other_kinds_of_inodes_are_removed() {
    let found = after(|bed, get| {
        let target = Target { inode: bed.link, kind: FileKind::Symlink };
        assert!(!get(&numbered(prefix::INODE, bed.note)).is_empty());
        set(entry_key(bed.note, "child"), encode(&target).unwrap())
    });
    assert!(found[0].starts_with("lost the name \"child\" in directory inode "), "{found:?}");
    assert!(found[0].ends_with("is not a directory"), "{found:?}");
}

#[test]
fn missing_content_is_reported_with_its_range() {
    let content = after(|bed, _| remove(numbered(prefix::CONTENT, bed.note)));
    assert_eq!(content, ["lost bytes 0 to 4 of shared:/note are lost: the content is missing"]);
    let link = after(|bed, _| remove(numbered(prefix::CONTENT, bed.link)));
    assert!(link[0].starts_with("lost bytes 0 to 5 of shared:/dir/link are lost"), "{link:?}");
}

#[test]
fn units_of_removed_files_are_a_leak() {
    let leak = after(|_, get| {
        set(unit_key(prefix::UNIT, InodeId(0x77), 0), get(&unit_key(prefix::UNIT, CACHED, 2)))
    });
    assert_eq!(
        leak,
        ["wrong 12288 bytes in 1 units belong to inode 77, which no longer exists: their space is leaked"]
    );
    let truncated = after(|bed, get| {
        let truncation = Truncation { layout: Layout::Striped, size: 0 };
        let unit = unit_key(prefix::UNIT, bed.data, 1);
        Changes::from([
            (numbered(prefix::TRUNCATION, InodeId(0x77)), Some(encode(&truncation).unwrap())),
            (unit_key(prefix::UNIT, InodeId(0x77), 0), Some(get(&unit))),
            (unit, None),
        ])
    });
    assert_eq!(truncated, Vec::<String>::new(), "the next start of the node truncates them");
}

#[test]
fn blocks_of_two_units_are_copied_without_loss() {
    let shared =
        after(|bed, get| set(unit_key(prefix::UNIT, bed.data, 0), get(&unit_key(prefix::UNIT, CACHED, 2))));
    assert!(
        matches!(shared.as_slice(), [one] if one.ends_with("both have the same bytes there")),
        "{shared:?}"
    );
}

#[test]
fn a_damaged_unit_record_is_lost_only_when_the_unit_was_dirty() {
    let dirty = after(|_, _| set(unit_key(prefix::UNIT, CACHED, 0), vec![1, 2, 3]));
    assert!(
        matches!(dirty.as_slice(), [one] if one.starts_with("lost the index record of unit 0")),
        "{dirty:?}"
    );
    assert!(dirty[0].ends_with("of out/result, within bytes 0 to 1048575, is lost"), "{dirty:?}");
    let clean = after(|_, _| set(unit_key(prefix::UNIT, CACHED, 2), vec![1, 2, 3]));
    assert!(
        matches!(clean.as_slice(), [one] if one.starts_with("wrong the index record of unit 2")),
        "{clean:?}"
    );
}

#[test]
fn pending_operations_are_noted_and_left_to_the_next_start() {
    let bed = Bed::new(true);
    bed.tamper(|get| {
        let intent = Intent::Decided { redo: Vec::new() };
        let mut changes = change_inode(bed.data, get, |record| record.links = 0);
        changes.extend(set(numbered(prefix::INTENT, InodeId(5)), encode(&intent).unwrap()));
        changes.extend(set(numbered(prefix::ORPHAN, bed.data), Vec::new()));
        changes.extend(remove(entry_key(InodeId::ROOT, "data")));
        let key = numbered(prefix::DIRECTORY, InodeId::ROOT);
        let mut record: DirectoryRecord = decode(&get(&key)).unwrap();
        record.entries -= 1;
        changes.extend(set(key, encode(&record).unwrap()));
        changes
    });
    assert_eq!(bed.found(), Vec::<String>::new());
    let notes: Vec<_> = bed.check(false).findings.into_iter().map(|finding| finding.message).collect();
    assert_eq!(
        notes,
        [
            "metadata operation 5 of home 0 is pending and decided: the next start of the node completes it",
            "1 removed files were open; the next start of the node removes them"
        ]
    );
}

/// Records that other nodes make are decoded at least.
#[test]
fn damaged_records_of_every_kind_are_reported() {
    let prefixes = [
        prefix::INTENT,
        prefix::STEP,
        prefix::FINISHED,
        prefix::TREE_LOCK,
        prefix::TRUNCATION,
        prefix::ENTRY,
        prefix::INODE,
        prefix::UNIT,
    ];
    for prefix in prefixes {
        let key = [prefix, 1, 2, 3];
        let key = if prefix == prefix::UNIT { key.to_vec() } else { of_home(&key) };
        let found = after(|_, _| set(key, vec![0xFF; 5]));
        let expected = usize::from(prefix != prefix::TREE_LOCK);
        assert_eq!(found.len(), expected, "{:?}: {found:?}", char::from(prefix));
    }
    let target = Target { inode: InodeId::ROOT, kind: FileKind::Directory };
    assert!(!encode(&(target, NOW, Generation(0))).unwrap().is_empty());
}
