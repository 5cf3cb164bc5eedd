//! Files that are mostly holes, and receipts of more units than one request names.

use super::bed::{Bed, bytes};
use super::faulty::Plan;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileOutcome, Receipt};
use tameike_core::{Errno, Layout, UnitId};

const UNIT: u64 = UNIT_SIZE as u64;
/// As large as files of all usual file systems may be.
const FAR: u64 = 15 << 40;

/// After a drain that was cut off, the receipt of a sparse file had every unit of its size in memory, and read
/// all of its holes.
#[test]
fn holes_cost_a_receipt_neither_memory_nor_time() {
    let mut unproven = 0;
    for step in 0.. {
        let bed = Bed::new(300 + step, 2);
        let client = bed.client(0);
        let opened = bed.run(async move {
            client.create(b"sparse", b"").await.expect("write");
            client.open(b"sparse", false).await.expect("open")
        });
        // On another node than the one with the journal: that a unit is clean there does not make its digest safe.
        let inode = opened.inode;
        let is_away = |&index: &u64| {
            bed.cluster.unit_home(Layout::Striped, UnitId { inode, index }) != bed.cluster.inode_home(inode)
        };
        let near = (0..).find(is_away).expect("a unit") * UNIT;
        let far = (FAR / UNIT..).find(is_away).expect("a unit") * UNIT;
        let client = bed.client(0);
        bed.run(async move {
            client.write(b"sparse", near, b"head").await.expect("write");
            client.write(b"sparse", far + 7, b"tail").await.expect("write");
        });
        let (receipt, failed) = drain_with_failure(&bed, step);
        let [file] = receipt.files.as_slice() else { panic!("step {step}: {receipt:?}") };
        assert!(receipt.is_complete(), "step {step}: {file:?}");
        assert_eq!(file.size, far + 11);
        assert!(file.checksum.starts_with("units:"), "step {step}: {file:?}");
        assert!(bed.control.reads() < 20, "step {step}: {} reads", bed.control.reads());
        unproven += u32::from(file.note.contains("2 units were flushed by an agent that stopped"));
        if !failed {
            assert!(unproven > 0, "no digest was ever lost");
            return;
        }
    }
}

#[test]
fn what_was_lost_is_found_where_the_file_has_data() {
    let written = [(0, 3 * UNIT), (5 * UNIT + 100, 10), (2000 * UNIT, UNIT), (2001 * UNIT + 4096, 1)];
    let bed = Bed::new(400, 3);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"sparse", b"").await.expect("write");
        for (seed, (start, length)) in (0..).zip(written) {
            client.write(b"sparse", start, &bytes(seed, length as usize)).await.expect("write");
        }
    });
    let whole = bed.drain(true);
    assert_eq!(whole.files[0].outcome, FileOutcome::Verified);
    for step in 0.. {
        let again = Bed::new(401 + step, 3);
        let (client, cluster) = (again.client(0), again.cluster.clone());
        let source = std::fs::File::open(bed.root.join("sparse")).expect("it is there");
        copy(&source, &again.root.join("sparse"), &written);
        // The job writes one byte of what is there, to another node than the one with the journal of the file.
        again.run(async move {
            let inode = client.open(b"sparse", false).await.expect("open").inode;
            let home = |index| cluster.unit_home(Layout::Striped, UnitId { inode, index });
            let index = (0..3).find(|&index| home(index) != cluster.inode_home(inode)).expect("a unit");
            let start = (index * UNIT) as usize;
            let byte = &bytes(0, start + 1)[start..];
            client.write(b"sparse", start as u64, byte).await.expect("write");
        });
        let (lost, failed) = drain_with_failure(&again, step);
        assert!(failed, "no digest was ever lost");
        if lost.files[0].note.contains("agent that stopped") {
            assert_eq!(lost.files[0].checksum, whole.files[0].checksum, "{lost:?}");
            return;
        }
    }
}

/// Copies these parts.
fn copy(source: &std::fs::File, target: &std::path::Path, parts: &[(u64, u64)]) {
    use std::os::unix::fs::FileExt;
    let target = std::fs::File::create(target).expect("made");
    for &(start, length) in parts {
        let mut part = vec![0; length as usize];
        source.read_exact_at(&mut part, start).expect("read");
        target.write_all_at(&part, start).expect("write");
    }
}

/// Drains with a failure of one call, and again after the agents died.
fn drain_with_failure(bed: &Bed, step: u64) -> (Receipt, bool) {
    bed.control.set(Plan::Once(step, Errno::EIO));
    bed.drain(false);
    let failed = bed.control.failed() > 0;
    bed.control.set(Plan::Good);
    bed.crash();
    (bed.drain(true), failed)
}

#[test]
fn a_receipt_of_many_units_is_made_in_parts() {
    const UNITS: u64 = 1030;
    let bed = Bed::new(500, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"").await.expect("write");
        for unit in 0..UNITS {
            client.write(b"file", unit * UNIT, &[unit as u8 | 1]).await.expect("write");
        }
    });
    let receipt = bed.drain(false);
    let mut expected = blake3::Hasher::new();
    let mut unit = vec![0; UNIT_SIZE];
    for index in 0..UNITS {
        unit[0] = index as u8 | 1;
        expected.update(if index == UNITS - 1 { &unit[..1] } else { &unit });
    }
    assert_eq!(receipt.files[0].checksum, expected.finalize().to_hex().to_string());
}
