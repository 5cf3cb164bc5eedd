//! Bytes that no home holds, and a node has in memory.

use super::bed::{Bed, bytes};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Generation, NodeId, UnitId};

const SIZE: usize = UNIT_SIZE + 5000;

/// What is read of a file of the shared file system, with the same file as node 2 has it in memory in this version, relative to
/// the one that was opened: as other bytes, to be told apart.
fn read_beside(holder: u64, told: Vec<NodeId>) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) {
    let bed = Bed::new(71, 3);
    let (shared, held) = (bytes(1, SIZE), bytes(2, SIZE));
    std::fs::write(bed.root.join("file"), &shared).expect("write");
    let client = bed.client(0);
    let opened = {
        let client = bed.client(0);
        bed.run(async move { client.open(b"file", false).await }).expect("open")
    };
    for (index, part) in held.chunks(UNIT_SIZE).enumerate() {
        let unit = UnitId { inode: opened.inode, index: index as u64 };
        let generation = Generation(opened.generation.0 + holder);
        bed.hold(NodeId(2), unit, generation, part.to_vec());
    }
    let (first, second) = bed
        .run(async move {
            let first = client.read_from(opened, b"file", told).await?;
            Ok::<_, tameike_core::Fault>((first, client.read_from(opened, b"file", Vec::new()).await?))
        })
        .expect("reads");
    (shared, held, first, second)
}

#[test]
fn what_a_node_has_in_memory_is_not_asked_of_the_shared_file_system() {
    let (shared, held, first, second) = read_beside(0, vec![NodeId(1), NodeId(2)]);
    assert!(first == held, "the shared file is not read");
    assert!(second == shared, "what was passed on is not kept");
}

#[test]
fn what_no_node_has_in_this_version_is_read_there() {
    for (version, told) in [(1, vec![NodeId(2)]), (0, vec![NodeId(1)]), (0, Vec::new())] {
        let (shared, _, first, second) = read_beside(version, told);
        assert!(first == shared && second == shared);
    }
}

/// What a holder had of a version from before a cut was kept by the home beside bytes that were written after it, and came to the shared
/// file with them.
#[test]
fn cut_bytes_that_a_node_still_has_in_memory_stay_cut() {
    let bed = Bed::new(72, 3);
    let old = bytes(1, UNIT_SIZE);
    std::fs::write(bed.root.join("file"), &old).expect("write");
    let client = bed.client(0);
    let opener = bed.client(0);
    let opened = bed.run(async move { opener.open(b"file", true).await }).expect("open");
    bed.hold(NodeId(2), UnitId { inode: opened.inode, index: 0 }, opened.generation, old);
    let seen = bed.run(async move {
        client.truncate(b"file", 0).await?;
        for piece in 0..70_u64 {
            client.put(opened, piece * 8192, &[7; 100]).await?;
        }
        // Who has opened it before may see what was there.
        client.read_from(opened, b"file", vec![NodeId(2)]).await?;
        client.put(opened, 70 * 8192, &[7; 100]).await?;
        client.close(opened, 70 * 8192 + 100).await?;
        client.write_back(b"file").await?;
        client.read(b"file").await
    });
    let wrong = |bytes: &[u8]| {
        bytes.iter().enumerate().any(|(place, byte)| *byte != if place % 8192 < 100 { 7 } else { 0 })
    };
    assert!(!wrong(&seen.expect("read")) && !wrong(&bed.real("file")));
}
