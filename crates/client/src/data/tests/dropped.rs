//! Reads that are dropped before they end: they leave no mark that later readers would wait for.

use super::super::file::LocationPlan;
use super::*;
use futures_util::FutureExt;

const LENGTH: u32 = 4096;

#[test]
fn a_read_dropped_while_it_waits_for_a_frame_leaves_no_fetch_in_flight() {
    let bench = Bench::new(1, 2);
    let file = locations::written(&bench, 2);
    for offset in [0, UNIT_SIZE as u64] {
        let taken: Vec<_> = std::iter::from_fn(|| bench.engines[0].frame_now()).collect();
        let read = bench.engines[0].read(&file, offset, LENGTH);
        bench.simulation.run(async { assert!(read.now_or_never().is_none(), "there is no frame") });
        drop(taken);
        let byte = (offset / UNIT_SIZE as u64) as u8 + 1;
        assert_eq!(bench.read(0, &file, offset, LENGTH), vec![byte; LENGTH as usize]);
    }
}

#[test]
fn a_dropped_location_request_leaves_no_unit_requested() {
    let bench = Bench::new(2, 2);
    let file = locations::written(&bench, 2);
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
