//! Reads that are dropped before they end: they leave no mark that later readers would wait for.

use super::super::file::LocationPlan;
use super::*;
use futures_util::FutureExt;

const LENGTH: u32 = 4096;

/// A file of two units at their homes, opened on node 0.
fn at_homes(bench: &Bench) -> Arc<FileData> {
    let writer = bench.open(1);
    for index in 0..2 {
        bench.write(1, &writer, index * UNIT_SIZE as u64, vec![index as u8 + 1; UNIT_SIZE]);
    }
    bench.flush(1, &writer).expect("a flush");
    bench.open(0)
}

#[test]
fn a_read_dropped_while_it_waits_for_a_frame_leaves_no_fetch_in_flight() {
    let bench = Bench::new(1, 2);
    let file = at_homes(&bench);
    for offset in [0, UNIT_SIZE as u64] {
        let taken: Vec<_> = std::iter::from_fn(|| bench.engines[0].frame_now()).collect();
        let (engine, reader) = (bench.engines[0].clone(), file.clone());
        let mut read = Box::pin(async move { engine.read(&reader, offset, LENGTH).await });
        bench.simulation.run(async move {
            assert!(read.as_mut().now_or_never().is_none(), "there is no frame");
        });
        drop(taken);
        let byte = (offset / UNIT_SIZE as u64) as u8 + 1;
        assert_eq!(bench.read(0, &file, offset, LENGTH), vec![byte; LENGTH as usize]);
    }
}

#[test]
fn a_dropped_location_request_leaves_no_unit_requested() {
    let bench = Bench::new(2, 2);
    let file = at_homes(&bench);
    let plan = || file.plan_location(1, (UNIT_SIZE as u64, LENGTH), None);
    for attempt in 0..3 {
        let LocationPlan::Request(mut request) = plan() else { panic!("attempt {attempt}: no request") };
        assert!(matches!(plan(), LocationPlan::Wait), "one request at a time");
        // As a message to a home that has none of these units.
        drop(request.split_off(|_| true));
        drop(request);
    }
    let LocationPlan::Request(request) = plan() else { panic!("the unit stays requested") };
    request.learn(vec![None]);
    assert!(matches!(plan(), LocationPlan::Read), "the home has no location");
    assert!(matches!(plan(), LocationPlan::Request(_)), "that is valid for one read");
}
