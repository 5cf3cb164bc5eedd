//! Homes with replicas: the copies of coordinator records and units on their backups.

use super::bed::Bed;
use futures_util::future::{join_all, try_join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{Generation, HomeId, HomeMap, InodeId, Layout, NodeId, Slot, UnitId};
use tameike_io::Payload;
use tameike_store::ledger::{LastRecord, last_record};
use tameike_store::table::prefix;

const CAPACITY: u64 = 24 << 20;
const MIB: u64 = UNIT_SIZE as u64;

/// What a node has of a home: its coordinator records, the number of its last record, and its units with the dirty bytes (of job-shared
/// files, all bytes).
#[derive(Debug, PartialEq)]
struct Copy {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    last: LastRecord,
    units: BTreeMap<UnitId, (RangeSet, Vec<u8>)>,
}

impl Bed {
    fn inode_of_record(key: &[u8]) -> InodeId {
        let inode = match key[1] {
            b'p' => &key[key.len() - 8..],
            _ => &key[2..10],
        };
        InodeId(u64::from_be_bytes(inode.try_into().expect("8 bytes")))
    }

    fn copy(&self, node: NodeId, home: HomeId, inodes: &[InodeId]) -> Copy {
        let (ledger, extents) = self.stores(node);
        let all = ledger.read(|table| table.scan(&[prefix::CACHE], &[prefix::CACHE + 1], usize::MAX));
        let of_home = |key: &[u8]| self.cluster.inode_home(Self::inode_of_record(key)) == home;
        let records = all.expect("a whole table").into_iter().filter(|(key, _)| of_home(key)).collect();
        let last = ledger.read(|table| last_record(table, home)).expect("a whole table");
        let mut units = BTreeMap::new();
        for &inode in inodes {
            for index in 0..8 {
                let unit = UnitId { inode, index };
                if self.cluster.unit_home(Layout::Striped, unit) != home {
                    continue;
                }
                let frame = self.client_pool.try_take().expect("tests use few frames");
                let whole = 0..UNIT_SIZE as u32;
                let (frame, held) = self.run(extents.read(unit, whole.clone(), frame, Generation(u64::MAX)));
                let held = held.expect("an intact unit");
                let kept = match (inode.is_cached(), held.sums) {
                    (true, _) => extents.dirty_of(unit).expect("a whole index"),
                    (false, Some(_)) => whole.into(),
                    (false, None) => held.ranges,
                };
                let bytes =
                    kept.iter().flat_map(|range| frame[range.start as usize..range.end as usize].to_vec());
                let bytes = bytes.collect();
                if !kept.is_empty() {
                    units.insert(unit, (kept, bytes));
                }
            }
        }
        Copy { records, last, units }
    }

    /// Checks that all replicas of all homes are equal. Returns the number of units and of records in the copies.
    fn compare_copies(&self, inodes: &[InodeId]) -> (usize, usize) {
        let (map, mut counts) = (self.cluster.map(), (0, 0));
        for home in (0..map.count()).map(|home| HomeId(home as u16)) {
            let own = self.copy(map.primary(home), home, inodes);
            for &backup in map.backups(home) {
                let copy = self.copy(backup, home, inodes);
                assert!(own == copy, "{home}, {backup}: {own:#?} {copy:#?}");
                counts = (counts.0 + copy.units.len(), counts.1 + copy.records.len());
            }
        }
        counts
    }

    fn inode(&self, path: &[u8]) -> InodeId {
        self.shared.stat(path).expect("the file").inode_id()
    }
}

#[test]
fn changes_of_cached_files_are_on_all_replicas() {
    for (nodes, replicas) in [(2, 2), (3, 2), (4, 3)] {
        let bed = Bed::with_replicas(91 + u64::from(nodes), nodes, CAPACITY, replicas);
        let (client, other) = (bed.client(0), bed.client(1));
        bed.run(async {
            client.create(b"a", &vec![1; 3 * UNIT_SIZE + 100]).await.expect("a write");
            client.create(b"b", &[2; 5000]).await.expect("a write");
            other.write(b"a", MIB - 50, &[3; 100]).await.expect("a write over the edge of two units");
            other.write(b"b", 6000, &[4; 10]).await.expect("a write behind a hole");
        });
        let inodes = [bed.inode(b"a"), bed.inode(b"b")];
        let copies = replicas as usize - 1;
        let (units, records) = bed.compare_copies(&inodes);
        assert_eq!(units, 5 * copies);
        assert!(records >= 4 * copies, "{records}");
        bed.run(async {
            client.truncate(b"a", 2 * MIB + 77).await.expect("a truncate");
            client.change_space(b"a", SpaceChange::Punch, 4096..MIB + 4096, false).await.expect("a punch");
        });
        assert_eq!(bed.compare_copies(&inodes).0, 4 * copies);
        // A flush makes the copies clean, and what is written later stays dirty.
        bed.run(client.write_back(b"a")).expect("a flush");
        bed.run(client.write(b"a", 10, &[5; 10])).expect("a write");
        assert_eq!(bed.compare_copies(&inodes).0, 2 * copies);
        bed.drain_completely(true);
        assert_eq!(bed.compare_copies(&inodes).0, 0);
        bed.run(other.unlink(b"b")).expect("an unlink");
        bed.compare_copies(&inodes);
    }
}

#[test]
fn copies_of_a_unit_are_equal_after_writes_at_the_same_time() {
    let bed = Bed::with_replicas(92, 2, CAPACITY, 2);
    bed.run(bed.client(0).create(b"a", &[9; 8192])).expect("a write");
    let inode = bed.inode(b"a");
    for round in 0..30_u8 {
        let clients: Vec<_> = (0..2).map(|node| bed.client(node)).collect();
        bed.run(async {
            // More than keep their frames while they wait for the backup.
            let writes = (0..9_u8).map(|number| {
                let client = &clients[usize::from(number % 2)];
                let place = u64::from(number) * 700 + u64::from(round) * 31;
                async move {
                    match (number + round) % 9 {
                        0 => client.truncate(b"a", 3000 + place).await.map(drop),
                        1 => client.write_back(b"a").await,
                        _ => client.write(b"a", place, &[number * 25 + round; 3000]).await,
                    }
                }
            });
            try_join_all(writes).await.expect("all succeed");
        });
        bed.compare_copies(&[inode]);
    }
    let before = bed.run(bed.client(0).read(b"a")).expect("a read");
    bed.drain_completely(true);
    assert!(std::fs::read(bed.root.join("a")).expect("the file") == before);
}

#[test]
fn nothing_is_acknowledged_before_the_backup_has_it() {
    let bed = Bed::with_replicas(93, 3, CAPACITY, 2);
    let client = bed.client(0);
    bed.run(client.create(b"a", &[1; 5000])).expect("a write");
    let inode = bed.inode(b"a");
    let map = bed.cluster.map();
    // The unit, and the record of the file.
    let homes =
        [bed.cluster.unit_home(Layout::Striped, UnitId { inode, index: 0 }), bed.cluster.inode_home(inode)];
    for home in homes {
        let backup = map.backups(home)[0];
        bed.refuse_copies(backup, true);
        let write = bed.run(async {
            let write = client.write(b"a", 0, &[2; 100]);
            bed.machine.runtime().timeout(Duration::from_secs(60), write).await
        });
        assert!(write.is_none(), "{home} has acknowledged a change that {backup} lacks");
        bed.refuse_copies(backup, false);
    }
    // Without the backup, the change ends; so do those that have waited for it.
    let backup = map.backups(homes[0])[0];
    bed.refuse_copies(backup, true);
    let changed = bed.run(async {
        let write = client.write(b"a", 0, &[3; 100]);
        let change = async {
            bed.machine.runtime().sleep(Duration::from_secs(5)).await;
            let map = bed.cluster.map();
            let without = |map: HomeMap, home| map.without_backup(home, backup);
            assert!(bed.cluster.replace_map(map.homes().fold(HomeMap::clone(&map), without)));
        };
        futures_util::future::join(write, change).await.0
    });
    changed.expect("the write ends when the backup is gone");
    bed.compare_copies(&[inode]);
    assert_eq!(bed.run(client.read(b"a")).expect("a read")[..101], [&[3; 100][..], &[1]].concat());
}

/// A regression: a write back, as before a removal, asked the nodes of the map under which it had begun, and failed with `EHOSTDOWN`.
#[test]
fn a_write_back_asks_the_nodes_of_the_current_map() {
    let bed = Bed::with_replicas(95, 3, CAPACITY, 2);
    let content = vec![1; 5 * UNIT_SIZE];
    bed.run(bed.client(0).create(b"a", &content)).expect("a write");
    let (map, home) = (bed.cluster.map(), bed.cluster.inode_home(bed.inode(b"a")));
    let (client, backup) = (bed.client(map.primary(home).0), map.backups(home)[0]);
    // The coordinator waits for its backup before it asks the homes of units.
    bed.refuse_copies(backup, true);
    let written = bed.run(async {
        let change = async {
            bed.machine.runtime().sleep(Duration::from_secs(5)).await;
            bed.stop(backup);
            assert!(bed.cluster.replace_map(bed.cluster.map().excluding(backup)));
        };
        futures_util::future::join(client.write_back(b"a"), change).await.0
    });
    written.expect("a write back");
    assert!(bed.shared_content("a") == content);
}

#[test]
fn units_of_shared_files_have_copies() {
    let bed = Bed::with_replicas(94, 3, CAPACITY, 2);
    let client = bed.client(0);
    let inode = InodeId::in_slot(Slot(5), 77);
    let homes: BTreeSet<_> = bed.cluster.unit_homes(Layout::Striped, inode).into_iter().collect();
    assert!(homes.len() > 3);
    let payload = |bytes: &[u8]| {
        let mut frame = client.pool.try_take().expect("a frame");
        frame[..bytes.len()].copy_from_slice(bytes);
        Payload::new(Arc::new(frame), 0..bytes.len() as u32)
    };
    let units: Vec<_> = (0..6).map(|index| UnitId { inode, index }).collect();
    bed.run(async {
        for &unit in &units {
            let home = bed.cluster.unit_home(Layout::Striped, unit);
            let ranges = (0..5000).into();
            let write = UnitRequest::Write { unit, ranges, generation: Generation(0) };
            client.unit(home, write, Some(payload(&[unit.index as u8 + 1; 5000]))).await.expect("a write");
            let add = UnitRequest::FetchAdd { unit, offset: 16, addend: 300 };
            client.unit(home, add, None).await.expect("an addition");
        }
        // Of the units of one node, byte 3 of page 1 changes.
        let node = bed.cluster.primary(bed.cluster.unit_home(Layout::Striped, units[4]));
        let pages = units
            .iter()
            .filter(|unit| bed.cluster.primary(bed.cluster.unit_home(Layout::Striped, **unit)) == node);
        let records = pages.map(|unit| {
            let page = unit.index as u32 * 256 + 1;
            [&page.to_le_bytes()[..], &[1, 0, 1, 0, 3, 0, 1, 0, 99]].concat()
        });
        let patch = payload(&records.collect::<Vec<_>>().concat());
        let patches = (0..5).map(|_| {
            let request = UnitRequest::Patch { inode, layout: Layout::Striped };
            client.unit(node, request, Some(patch.clone()))
        });
        assert!(join_all(patches).await.iter().all(Result::is_ok));
    });
    assert_eq!(bed.compare_copies(&[inode]).0, 6);
    let punch = |node, change| {
        let request = UnitRequest::Space { inode, change, start: MIB, end: 3 * MIB, layout: Layout::Striped };
        bed.run(client.unit(NodeId(node), request, None)).expect("a change of space");
    };
    (0..3).for_each(|node| punch(node, SpaceChange::Punch));
    assert_eq!(bed.compare_copies(&[inode]).0, 4);
    (0..3).for_each(|node| punch(node, SpaceChange::Allocate));
    for node in 0..3 {
        let truncate = UnitRequest::Truncate { inode, size: MIB };
        bed.run(client.unit(NodeId(node), truncate, None)).expect("a truncate");
    }
    assert_eq!(bed.compare_copies(&[inode]).0, 1);
    let syncs =
        (0..3).map(|node| client.unit(NodeId(node), UnitRequest::Sync { inode, durable: true }, None));
    assert!(bed.run(join_all(syncs)).iter().all(Result::is_ok));
}
