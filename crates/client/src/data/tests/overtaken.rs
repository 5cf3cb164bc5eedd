//! Concurrent writes of several nodes to the same bytes.

use super::*;

/// A node was notified of another node's change while its own bytes were in flight, and took its own bytes for the last. It kept showing
/// them, also to later opens, although the other node's bytes had reached the home after them.
#[test]
fn nodes_agree_after_concurrent_writes_to_the_same_bytes() {
    // In the inode record, and in a unit.
    for (seed, length) in (0..150).flat_map(|seed| [(seed, 100), (seed, 6000)]) {
        let bench = Bench::new(seed, 4);
        let mut files = [bench.open(0), bench.open(1)];
        for (node, start) in [(0, 0), (1, 0), (0, 200 + length)] {
            bench.write(node, &files[node], start, vec![node as u8 + 1; length as usize]);
        }
        for (engine, file) in bench.engines.iter().zip(&files) {
            let (engine, file) = (engine.clone(), file.clone());
            let flush = async move { engine.flush(&file, false).await.expect("the flush") };
            bench.simulation.runtime().spawn(flush);
        }
        (0..seed % 15).all(|_| bench.simulation.step());
        // Another program opens the file meanwhile.
        drop(bench.open(0));
        while bench.simulation.step() {}
        for (node, file) in files.iter_mut().enumerate() {
            bench.engines[node].close(file);
            *file = bench.open(node);
        }
        let [one, other] = [0, 1].map(|node| bench.read(node, &files[node], 0, length as u32));
        assert!(one == other, "seed {seed}, {length} bytes: {} and {}", one[0], other[0]);
    }
}
