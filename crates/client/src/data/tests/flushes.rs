//! Flushes beside writes.

use super::*;

/// Closing a file used to wait until nobody on the node was writing to it.
#[test]
fn a_flush_ends_while_others_write_on() {
    let bench = Bench::new(3, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    let engine = bench.engines[0].clone();
    bench.simulation.run(async move {
        let writes = async {
            loop {
                engine.write(&file, 500, &[2; 100]).await.expect("the write");
                engine.homes.runtime.sleep(std::time::Duration::from_micros(50)).await;
            }
        };
        let flush = engine.flush(&file, false);
        match futures_util::future::select(std::pin::pin!(flush), std::pin::pin!(writes)).await {
            Either::Left((flushed, _)) => flushed.expect("the flush"),
            Either::Right(((), _)) => unreachable!("it writes for ever"),
        }
    });
}

/// What was written while a flush was under way was told to the file's home by that flush, before it had come to its
/// units, and then no more: who had opened the file in between, and read zeros, went on to read them.
#[test]
fn what_is_written_during_a_flush_is_a_change_of_its_own() {
    for (seed, unit) in (0..40).flat_map(|seed| [(seed, 2), (seed, 3)]) {
        let bench = Bench::new(seed, 12);
        let (file, engine) = (bench.open(0), bench.engines[0].clone());
        bench.write(0, &file, 0, vec![1; 10_000]);
        let (flushed, place) = (file.clone(), unit * UNIT_SIZE as u64);
        bench.simulation.run(async move {
            let write = async {
                engine.homes.runtime.sleep(std::time::Duration::from_micros(1)).await;
                engine.write(&flushed, place, &[2; 3000]).await
            };
            let (flushed, written) = futures_util::future::join(engine.flush(&flushed, false), write).await;
            flushed.and(written).expect("the flush and the write");
        });
        let other = bench.open(1);
        bench.read(1, &other, place, 3000);
        bench.flush(0, &file).expect("the second flush");
        let other = bench.open(1);
        assert!(bench.read(1, &other, place, 3000) == [2; 3000], "seed {seed}, unit {unit}");
    }
}

/// A flush told the home of a write that had come meanwhile and whose bytes were still here. When they went, nobody was told:
/// who had read the file before went on seeing the old ones, and after a cut by another node its end was wrong.
#[test]
fn what_is_written_during_a_flush_is_told_with_its_bytes() {
    let bench = Bench::new(3, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    let (engine, written) = (bench.engines[0].clone(), file.clone());
    let during = async move {
        let write = async {
            engine.homes.runtime.sleep(std::time::Duration::from_micros(1)).await;
            engine.write(&written, 0, &[2; 100]).await
        };
        futures_util::future::try_join(engine.flush(&written, false), write).await
    };
    bench.simulation.run(during).expect("the flush and the write");
    assert!(file.newer().is_some(), "its home does not know of the second write");
    let before = bench.open(1).generation();
    bench.flush(0, &file).expect("the flush");
    let after = bench.open(1);
    assert!(after.generation() > before);
    assert_eq!(bench.read(1, &after, 0, 200), [vec![2; 100], vec![1; 100]].concat());
}
