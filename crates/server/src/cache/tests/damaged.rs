//! Bits that turn on a node's device, below bytes that the shared file system has and below others.

use super::bed::{Bed, bytes};
use tameike_core::Errno;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::receipt::FileOutcome;

const SIZE: usize = UNIT_SIZE + 5 * BLOCK_SIZE;

/// A bed whose nodes hold a file that was there before.
fn read_once(seed: u64) -> (Bed, Vec<u8>) {
    let bed = Bed::new(seed, 2);
    let content = bytes(seed, SIZE);
    std::fs::write(bed.root.join("file"), &content).expect("write");
    let client = bed.client(0);
    assert_eq!(bed.run(async move { client.read(b"file").await }).expect("read"), content);
    (bed, content)
}

fn block(content: &[u8], number: usize) -> &[u8] {
    &content[number * BLOCK_SIZE..(number + 1) * BLOCK_SIZE]
}

#[test]
fn clean_bytes_that_rot_are_fetched_again() {
    let (bed, content) = read_once(61);
    for number in [3, 4, 9, UNIT_SIZE / BLOCK_SIZE + 1] {
        bed.damage(block(&content, number));
    }
    for node in [1, 0] {
        let client = bed.client(node);
        assert_eq!(bed.run(async move { client.read(b"file").await }).expect("read"), content);
    }
    bed.damage(block(&content, 3)); // it is kept again
}

#[test]
fn clean_bytes_that_rot_beside_dirty_ones_stop_neither_write_nor_flush() {
    let (bed, mut content) = read_once(62);
    let client = bed.client(0);
    bed.damage(block(&content, 3));
    bed.run(async move { client.write(b"file", 3 * BLOCK_SIZE as u64 + 100, &[7; 50]).await })
        .expect("a write beside rot");
    bed.damage(block(&content, 8));
    content[3 * BLOCK_SIZE + 100..3 * BLOCK_SIZE + 150].fill(7);
    let receipt = bed.drain(true);
    assert!(receipt.is_complete(), "{receipt:?}");
    assert_eq!(bed.real("file"), content);
    let client = bed.client(1);
    assert_eq!(bed.run(async move { client.read(b"file").await }).expect("read"), content);
}

#[test]
fn dirty_bytes_that_rot_are_said_to_be_lost() {
    let (bed, content) = read_once(63);
    let client = bed.client(0);
    let start = 6 * BLOCK_SIZE as u64;
    bed.run(async move { client.write(b"file", start, &[9; BLOCK_SIZE]).await }).expect("write");
    bed.damage(&[9; BLOCK_SIZE]);
    bed.damage(block(&content, 7));
    let client = bed.client(0);
    let fault = bed.run(async move { client.read(b"file").await }).expect_err("they are nowhere");
    assert_eq!(fault.errno, Errno::EIO);
    let lost = format!("bytes {start} to {} of file are lost", start + BLOCK_SIZE as u64 - 1);
    assert!(fault.to_string().contains(&lost), "{fault}");
    let receipt = bed.drain(true);
    assert!(
        matches!(&receipt.files[0].outcome, FileOutcome::Missing(why) if why.contains(&lost)),
        "{receipt:?}"
    );
    assert_eq!(bed.real("file"), content, "nothing that has rotted is flushed");
}
