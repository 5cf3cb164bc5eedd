//! Flushes concurrent with writes.

use super::*;

impl Bench {
    /// Node 0 flushes the file, and writes to it after the flush has begun.
    fn flush_during_write(&self, file: &Arc<FileData>, offset: u64, data: &[u8]) {
        let engine = &self.engines[0];
        let write = async {
            engine.homes.runtime.sleep(std::time::Duration::from_micros(1)).await;
            engine.write(file, offset, data).await
        };
        let both = futures_util::future::join(engine.flush(file, false), write);
        let (flushed, written) = self.simulation.run(both);
        flushed.and(written).expect("the flush and the write");
    }
}

/// A close waited until no program on the node was writing to the file.
#[test]
fn a_flush_ends_during_continuous_writes() {
    let bench = Bench::new(3, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    let engine = &bench.engines[0];
    bench.simulation.run(async {
        let writes = async {
            loop {
                engine.write(&file, 500, &[2; 100]).await.expect("the write");
                engine.homes.runtime.sleep(std::time::Duration::from_micros(50)).await;
            }
        };
        let flush = engine.flush(&file, false);
        match futures_util::future::select(std::pin::pin!(flush), std::pin::pin!(writes)).await {
            Either::Left((flushed, _)) => flushed.expect("the flush"),
            Either::Right(((), _)) => unreachable!("the writer never ends"),
        }
    });
}

/// A flush committed a write that came during the flush, before the bytes reached their units; no later commit followed. A node that opened
/// the file in between and read zeros kept reading them.
#[test]
fn a_write_during_a_flush_gets_its_own_commit() {
    for (seed, unit) in (0..40).flat_map(|seed| [(seed, 2), (seed, 3)]) {
        let bench = Bench::new(seed, 12);
        let (file, place) = (bench.open(0), unit * UNIT_SIZE as u64);
        bench.write(0, &file, 0, vec![1; 10_000]);
        bench.flush_during_write(&file, place, &[2; 3000]);
        let other = bench.open(1);
        bench.read(1, &other, place, 3000);
        bench.flush(0, &file).expect("the second flush");
        let other = bench.open(1);
        assert!(bench.read(1, &other, place, 3000) == [2; 3000], "seed {seed}, unit {unit}");
    }
}

/// A flush committed a concurrent write whose bytes were still on the client, and no commit followed when they were sent. Earlier readers
/// kept seeing the old bytes, and after a truncation by another node the size was wrong.
#[test]
fn a_write_during_a_flush_is_committed_with_its_bytes() {
    let bench = Bench::new(3, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    bench.flush_during_write(&file, 0, &[2; 100]);
    assert!(file.newer().is_some(), "its home does not know of the second write");
    let before = bench.open(1).generation();
    bench.flush(0, &file).expect("the flush");
    let after = bench.open(1);
    assert!(after.generation() > before);
    assert_eq!(bench.read(1, &after, 0, 200), [vec![2; 100], vec![1; 100]].concat());
}
