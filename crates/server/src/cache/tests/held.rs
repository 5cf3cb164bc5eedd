//! Units that no home holds, and that another node has in memory.

use super::bed::{Bed, bytes};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Generation, NodeId, UnitId};

const SIZE: usize = UNIT_SIZE + 5000;

/// Reads a file twice: with `holders`, then with none. Node 2 has other bytes of it in memory, in the opened generation plus `ahead`.
/// Returns the shared bytes, those in memory, and the results of both reads.
fn read_beside(ahead: u64, holders: Vec<NodeId>) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) {
    let bed = Bed::new(71, 3);
    let (shared, held) = (bytes(1, SIZE), bytes(2, SIZE));
    bed.write_shared("file", &shared);
    let client = bed.client(0);
    let opened = bed.run(client.open(b"file", false)).expect("open");
    for (index, part) in held.chunks(UNIT_SIZE).enumerate() {
        let unit = UnitId { inode: opened.inode, index: index as u64 };
        let generation = Generation(opened.generation.0 + ahead);
        bed.put_in_memory(NodeId(2), unit, generation, part.to_vec());
    }
    let first = bed.run(client.read_from(opened, b"file", holders)).expect("read");
    let second = bed.run(client.read_from(opened, b"file", Vec::new())).expect("read");
    (shared, held, first, second)
}

#[test]
fn units_in_the_memory_of_a_node_are_not_read_from_the_shared_file_system() {
    let (shared, held, first, second) = read_beside(0, vec![NodeId(1), NodeId(2)]);
    assert!(first == held, "the home reads from the holder");
    assert!(second == shared, "the home does not store bytes from a holder");
}

#[test]
fn units_that_no_holder_has_in_this_generation_are_read_from_the_shared_file_system() {
    for (version, holders) in [(1, vec![NodeId(2)]), (0, vec![NodeId(1)]), (0, Vec::new())] {
        let (shared, _, first, second) = read_beside(version, holders);
        assert!(first == shared && second == shared);
    }
}

/// Regression: the home stored bytes that a cache holder had from before a truncate, beside bytes written after it, and flushed both.
#[test]
fn truncated_bytes_in_the_memory_of_a_node_stay_truncated() {
    let bed = Bed::new(72, 3);
    let old = bytes(1, UNIT_SIZE);
    bed.write_shared("file", &old);
    let client = bed.client(0);
    let opened = bed.run(client.open(b"file", true)).expect("open");
    bed.put_in_memory(NodeId(2), UnitId { inode: opened.inode, index: 0 }, opened.generation, old);
    let seen = bed.run(async move {
        client.truncate(b"file", 0).await?;
        for piece in 0..70_u64 {
            client.write_uncommitted(opened, piece * 8192, &[7; 100]).await?;
        }
        // A file opened before the truncate may return the old bytes.
        client.read_from(opened, b"file", vec![NodeId(2)]).await?;
        client.write_uncommitted(opened, 70 * 8192, &[7; 100]).await?;
        client.close(opened, 70 * 8192 + 100).await?;
        client.write_back(b"file").await?;
        client.read(b"file").await
    });
    let wrong = |bytes: &[u8]| {
        bytes.iter().enumerate().any(|(position, byte)| *byte != if position % 8192 < 100 { 7 } else { 0 })
    };
    assert!(!wrong(&seen.expect("read")) && !wrong(&bed.shared_content("file")));
}
