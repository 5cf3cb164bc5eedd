//! Bit errors on a node's device, in clean and in dirty bytes.

use super::bed::{Bed, bytes};
use tameike_core::Errno;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::receipt::FileOutcome;

const SIZE: usize = UNIT_SIZE + 5 * BLOCK_SIZE;

/// Creates nodes that store the clean units of a file.
fn read_once(seed: u64) -> (Bed, Vec<u8>) {
    let bed = Bed::new(seed, 2);
    let content = bytes(seed, SIZE);
    bed.write_shared("file", &content);
    assert_eq!(bed.read(0, "file"), content);
    (bed, content)
}

fn block(content: &[u8], number: usize) -> &[u8] {
    &content[number * BLOCK_SIZE..(number + 1) * BLOCK_SIZE]
}

#[test]
fn damaged_clean_bytes_are_fetched_again() {
    let (bed, content) = read_once(61);
    for number in [3, 4, 9, UNIT_SIZE / BLOCK_SIZE + 1] {
        bed.damage(block(&content, number));
    }
    for node in [1, 0] {
        assert_eq!(bed.read(node, "file"), content);
    }
    bed.damage(block(&content, 3)); // it is kept again
}

#[test]
fn damaged_clean_bytes_beside_dirty_ones_stop_neither_write_nor_flush() {
    let (bed, mut content) = read_once(62);
    bed.damage(block(&content, 3));
    bed.write("file", 3 * BLOCK_SIZE as u64 + 100, &[7; 50]);
    bed.damage(block(&content, 8));
    content[3 * BLOCK_SIZE + 100..3 * BLOCK_SIZE + 150].fill(7);
    bed.drain_completely(true);
    assert_eq!(bed.shared_content("file"), content);
    assert_eq!(bed.read(1, "file"), content);
}

#[test]
fn damaged_dirty_bytes_are_reported_as_lost() {
    let (bed, content) = read_once(63);
    let start = 6 * BLOCK_SIZE as u64;
    bed.write("file", start, &[9; BLOCK_SIZE]);
    bed.damage(&[9; BLOCK_SIZE]);
    bed.damage(block(&content, 7));
    let fault = bed.run(bed.client(0).read(b"file")).expect_err("no copy exists");
    assert_eq!(fault.errno, Errno::EIO);
    let lost = format!("bytes {start} to {} of file are lost", start + BLOCK_SIZE as u64 - 1);
    assert!(fault.to_string().contains(&lost), "{fault}");
    let receipt = bed.drain(true);
    assert!(
        matches!(&receipt.files[0].outcome, FileOutcome::Missing(why) if why.contains(&lost)),
        "{receipt:?}"
    );
    assert_eq!(bed.shared_content("file"), content, "no damaged byte is flushed");
}
