//! Files that are mostly holes, and receipts of more units than one request names.

use super::bed::Bed;
use super::faulty::Plan;
use tameike_core::Errno;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileOutcome, Receipt};

const UNIT: u64 = UNIT_SIZE as u64;
/// As large as files of all usual file systems may be.
const FAR: u64 = 15 << 40;

/// After a drain that was cut off, the receipt of a sparse file had every unit of its size in memory, and read
/// all of its holes.
#[test]
fn holes_cost_a_receipt_neither_memory_nor_time() {
    let mut checksum = None;
    for step in 0.. {
        let bed = Bed::new(300 + step, 2);
        let client = bed.client(0);
        let near = 3 * UNIT;
        let far = FAR - FAR % UNIT;
        bed.run(async move {
            client.create(b"sparse", b"").await.expect("write");
            client.write(b"sparse", near, b"head").await.expect("write");
            client.write(b"sparse", far + 7, b"tail").await.expect("write");
        });
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
