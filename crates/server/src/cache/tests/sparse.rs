//! Sparse files, and receipts with more units than one request lists.

use super::bed::{Bed, bytes};
use super::faulty::Plan;
use tameike_core::Errno;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileOutcome, Receipt};
use tameike_core::wire::unit::SpaceChange;

const UNIT: u64 = UNIT_SIZE as u64;
/// Near the maximum file size of the usual file systems.
const FAR: u64 = 15 << 40;

/// Regression: after an interrupted drain, the receipt of a sparse file held all units of its size in memory, and read its holes.
#[test]
fn holes_cost_no_memory_and_no_reads_in_a_receipt() {
    let mut checksum = None;
    for step in 0.. {
        let bed = Bed::new(300 + step, 2);
        let far = FAR - FAR % UNIT;
        bed.create("sparse", b"");
        bed.write("sparse", 3 * UNIT, b"head");
        bed.write("sparse", far + 7, b"tail");
        let (receipt, failed) = drain_with_failure(&bed, step);
        let [file] = receipt.files.as_slice() else { panic!("step {step}: {receipt:?}") };
        assert_eq!(file.outcome, FileOutcome::Verified, "step {step}: {file:?}");
        assert_eq!(file.size, far + 11);
        assert!(file.checksum.starts_with("units:"), "step {step}: {file:?}");
        let first = checksum.get_or_insert_with(|| file.checksum.clone());
        assert_eq!(file.checksum, *first, "step {step}");
        assert!(bed.control.reads() < 20, "step {step}: {} reads", bed.control.reads());
        if !failed {
            return;
        }
    }
}

/// Drains with one failing call, and again after a crash of the agents.
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
    bed.create("file", b"");
    for unit in 0..UNITS {
        bed.write("file", unit * UNIT, &[unit as u8 | 1]);
    }
    let receipt = bed.drain(false);
    let mut expected = blake3::Hasher::new();
    let mut unit = vec![0; UNIT_SIZE];
    for index in 0..UNITS {
        unit[0] = index as u8 | 1;
        expected.update(if index == UNITS - 1 { &unit[..1] } else { &unit });
    }
    assert_eq!(receipt.files[0].checksum, expected.finalize().to_hex().to_string());
}

/// Checks the content that the job reads, then crashes the agents, drains, and checks the shared file and the receipt.
fn assert_content(bed: &Bed, expected: &[u8], what: &str) {
    assert!(bed.read(1, "file") == expected, "{what}: as the job reads it");
    bed.crash();
    let receipt = bed.drain(true);
    assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "{what}: {receipt:?}");
    assert!(bed.shared_content("file") == expected, "{what}: on the shared file system");
    assert!(bed.read(0, "file") == expected, "{what}: after the drain");
}

/// Punched and zeroed ranges of flushed, dirty and cached data read as zeros, whenever agents crash.
#[test]
fn punched_and_zeroed_bytes_do_not_reappear() {
    for (number, change) in (0..).zip([SpaceChange::Punch, SpaceChange::Zero]) {
        for step in 0.. {
            let bed = Bed::new(700 + 100 * number + step, 2);
            let mut expected = bytes(number, 4 * UNIT_SIZE);
            bed.create("file", &expected);
            bed.drain(false);
            bed.read(1, "file");
            bed.run(bed.client(1).write(b"file", UNIT + 100, b"dirty again")).expect("write");
            bed.run(bed.client(1).write(b"file", 3 * UNIT - 50, &[7; 100])).expect("write");
            expected[3 * UNIT_SIZE - 50..3 * UNIT_SIZE + 50].fill(7);
            expected[UNIT_SIZE / 2..3 * UNIT_SIZE].fill(0);
            bed.control.set(Plan::Once(step, Errno::EIO));
            let client = bed.client(0);
            let punch = || bed.run(client.change_space(b"file", change, UNIT / 2..3 * UNIT, false));
            let changed = punch();
            let failed = bed.control.failed() > 0;
            bed.control.set(Plan::Good);
            if changed.is_err() {
                assert!(failed, "step {step}: {changed:?}");
                punch().expect("another attempt");
            }
            assert_content(&bed, &expected, &format!("{change:?}, step {step}"));
            if !failed {
                break;
            }
        }
    }
}

/// Preallocation extends the file at once for the job, and with the flush on the shared file system.
#[test]
fn preallocation_extends_a_file() {
    let bed = Bed::new(900, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"head").await.expect("write");
        client.change_space(b"file", SpaceChange::Allocate, 0..UNIT + 5, true).await.expect("space");
        assert_eq!(client.size(b"file").await.expect("size"), UNIT + 5);
        client.change_space(b"file", SpaceChange::Allocate, 0..3 * UNIT, false).await.expect("space");
        assert_eq!(client.size(b"file").await.expect("size"), UNIT + 5);
        let beyond = client.change_space(b"file", SpaceChange::Allocate, 5..u64::MAX, true).await;
        assert_eq!(beyond.unwrap_err().errno, Errno::EFBIG);
    });
    let mut expected = b"head".to_vec();
    expected.resize(UNIT_SIZE + 5, 0);
    assert_content(&bed, &expected, "set aside");
}
