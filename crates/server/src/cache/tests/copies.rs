//! Checks of copies: damaged and different units and records of homes with replicas.

use super::bed::{Bed, bytes};
use crate::cache::entries_of_home;
use serde_bytes::ByteBuf;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::wire::admin::CopyReport;
use tameike_core::{Errno, Generation, HomeId, HomeSet, Layout, NodeId, UnitId};
use tameike_io::Payload;
use tameike_store::extent::Pieces;
use tameike_store::{RecordKind, copied};

const CAPACITY: u64 = 24 << 20;
const SIZE: usize = 2 * UNIT_SIZE + 5 * BLOCK_SIZE;

/// Content of a file in which all blocks differ.
fn content_of(seed: u64) -> Vec<u8> {
    let mut content = bytes(seed, SIZE);
    for (number, block) in (0_u32..).zip(content.chunks_mut(BLOCK_SIZE)) {
        block[..4].copy_from_slice(&number.to_le_bytes());
    }
    content
}

fn block(content: &[u8], number: usize) -> &[u8] {
    &content[number * BLOCK_SIZE..(number + 1) * BLOCK_SIZE]
}

impl Bed {
    /// Unit `index` of a file with its home, the primary and the first backup.
    fn unit(&self, path: &[u8], index: u64) -> (UnitId, HomeId, NodeId, NodeId) {
        let unit = UnitId { inode: self.shared.stat(path).expect("the file").inode_id(), index };
        let home = self.cluster.unit_home(Layout::Striped, unit);
        let map = self.cluster.map();
        (unit, home, map.primary(home), map.backups(home)[0])
    }

    /// The sum of the checks of all nodes.
    fn check_all(&self) -> CopyReport {
        let nodes = (0..self.cluster.nodes().len() as u32).map(NodeId);
        nodes.map(|node| self.check_copies(node)).fold(CopyReport::default(), |sum, one| CopyReport {
            homes: sum.homes + one.homes,
            homes_with_one_copy: sum.homes_with_one_copy + one.homes_with_one_copy,
            units: sum.units + one.units,
            differences: sum.differences + one.differences,
            repaired: sum.repaired + one.repaired,
            failed: sum.failed + one.failed,
            findings: [sum.findings, one.findings].concat(),
        })
    }

    fn assert_equal(&self) {
        let report = self.check_all();
        assert_eq!((report.differences, report.failed), (0, 0), "{report:?}");
        assert_eq!(report.homes, self.cluster.map().count());
    }

    fn assert_repaired(&self, differences: u64) {
        let report = self.check_all();
        let counts = (report.differences, report.repaired, report.failed);
        assert_eq!(counts, (differences, differences, 0), "{report:?}");
        self.assert_equal();
    }
}

#[test]
fn damaged_dirty_bytes_come_from_another_copy() {
    for (nodes, replicas) in [(2, 2), (4, 3)] {
        let bed = Bed::with_replicas(171, nodes, CAPACITY, replicas);
        let content = content_of(171);
        bed.create("a", &content);
        bed.assert_equal();
        let (_, _, primary, backup) = bed.unit(b"a", 0);
        bed.damage_on([primary.0], block(&content, 3));
        bed.damage_on([primary.0], block(&content, 4));
        bed.damage_on([backup.0], block(&content, 200));
        bed.assert_repaired(2);
        let (_, _, _, backup) = bed.unit(b"a", 2);
        bed.damage_on([backup.0], block(&content, 2 * UNIT_SIZE / BLOCK_SIZE + 4));
        bed.assert_repaired(1);
        assert_eq!(bed.read(1, "a"), content);
        bed.drain_completely(true);
        bed.assert_equal();
        assert_eq!(bed.shared_content("a"), content);
    }
}

#[test]
fn a_block_that_is_damaged_in_all_copies_is_left() {
    let bed = Bed::with_replicas(172, 2, CAPACITY, 2);
    let content = content_of(172);
    bed.create("a", &content);
    bed.damage(block(&content, 3));
    bed.damage_on([0], block(&content, 9));
    bed.damage_on([1], block(&content, 10));
    // Blocks 9 and 10 are repaired, each from the other copy. Block 3 is left on the primary.
    let report = bed.check_all();
    assert_eq!((report.units, report.differences, report.failed, report.left()), (3, 2, 0, 1), "{report:?}");
    let fault = bed.run(bed.client(0).read(b"a")).expect_err("no copy has the block");
    assert_eq!(fault.errno, Errno::EIO);
    bed.write("a", 3 * BLOCK_SIZE as u64, block(&content, 3));
    assert_eq!(bed.read(0, "a"), content);
    bed.assert_equal();
}

/// A block with dirty and clean bytes, of which the backup has only the dirty ones.
#[test]
fn dirty_bytes_beside_clean_ones_are_repaired() {
    let bed = Bed::with_replicas(173, 2, CAPACITY, 2);
    let mut content = content_of(173);
    bed.write_shared("a", &content);
    assert_eq!(bed.read(0, "a"), content);
    for start in [100, 400] {
        let start = 3 * BLOCK_SIZE + start;
        bed.write("a", start as u64, &[7; 50]);
        content[start..start + 50].fill(7);
    }
    bed.assert_equal();
    let (_, _, primary, backup) = bed.unit(b"a", 0);
    bed.damage_on([primary.0], block(&content, 3));
    bed.assert_repaired(1);
    let mut dirty = [0; BLOCK_SIZE];
    [100, 400].into_iter().for_each(|start| dirty[start..start + 50].fill(7));
    bed.damage_on([backup.0], &dirty);
    bed.assert_repaired(1);
    assert_eq!(bed.read(1, "a"), content);
    bed.drain_completely(true);
    assert_eq!(bed.shared_content("a"), content);
}

#[test]
fn units_that_a_backup_lacks_or_has_in_excess_are_repaired() {
    let bed = Bed::with_replicas(174, 3, CAPACITY, 2);
    let content = content_of(174);
    bed.create("a", &content);
    let (unit, home, _, backup) = bed.unit(b"a", 1);
    let (of_home, (_, extents)) = (HomeSet::from_iter([home]), bed.stores(backup));
    bed.run(extents.truncate(&of_home, unit.inode, UNIT_SIZE as u64 + 5000)).expect("a truncate");
    bed.assert_repaired(1);
    bed.drain_completely(true);
    let mut frame = bed.client_pool.try_take().expect("a frame");
    frame[..6000].fill(9);
    let pieces = Pieces::at(300, Payload::new(frame.into(), 0..6000)).expect("they fit");
    bed.run(extents.write(home, unit, pieces, true, Generation(0))).expect("a write");
    bed.assert_repaired(1);
    assert!(extents.dirty_of(unit).expect("an index").is_empty());
    assert_eq!(bed.read(0, "a"), content);
}

#[test]
fn a_copy_with_other_records_is_of_no_use() {
    let bed = Bed::with_replicas(175, 3, CAPACITY, 2);
    bed.create("a", &bytes(175, 100));
    let home = bed.cluster.inode_home(bed.unit(b"a", 0).0.inode);
    let (primary, backup) = (bed.cluster.map().primary(home), bed.cluster.map().backups(home)[0]);
    let (ledger, _) = bed.stores(backup);
    let entries = ledger.read(|table| entries_of_home(table, &bed.cluster, home)).expect("a whole table");
    assert!(!entries.is_empty(), "no record of {home}");
    // The last one is a record. The first ones follow from records.
    let changed = entries.into_iter().rev().take(1).map(|(key, _)| (ByteBuf::from(key), None)).collect();
    let body = copied::encode(&changed).expect("small");
    ledger.execute(RecordKind::Copied, &body, |table| copied::apply(&body, table)).expect("a change");
    let report = bed.check_all();
    assert_eq!((report.differences, report.left()), (1, 1), "{report:?}");
    assert_eq!(bed.failed_copies(primary), [(home, backup)]);
}
