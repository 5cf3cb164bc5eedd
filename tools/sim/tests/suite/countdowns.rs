//! Fault countdowns over the mixed workloads: every call can fail once with each of its faults, and the checks detect hidden faults.

use tameike_sim::countdown::FaultKind;
use tameike_sim::run::Failure;
use tameike_sim::runner::RunOptions;
use tameike_sim::walk::{Number, Stride, Workload, count, numbers, walk};
use tameike_sim::world::Canary;

/// The test runs one of this many countdowns; `tameike-sim countdowns` runs all.
const STRIDE: usize = 150;

fn chosen(stride: Stride) -> Vec<Number> {
    let all = Workload::ALL.map(|workload| (workload, count(workload).expect("it passes without faults")));
    numbers(&all, stride)
}

fn failures(numbers: Vec<Number>, canary: Option<Canary>) -> Vec<(Number, Failure)> {
    let how = RunOptions { jobs: 2, canary, replicas: 1, keep_going: true };
    walk(numbers, &how, |_, _| {}).expect("the runner works")
}

#[test]
fn every_kind_of_call_can_fail_once() {
    if let Some((number, failure)) = failures(chosen(Stride::OneOf(STRIDE)), None).first() {
        let Failure { step, message } = failure;
        panic!("tameike-sim countdowns --replay {number}: step {step}: {message}");
    }
}

/// With a disk that acknowledges failed writes, bytes and records are lost silently.
#[test]
fn a_hidden_failure_is_detected() {
    let torn = |number: &Number| number.fault == FaultKind::Torn;
    let numbers: Vec<_> = chosen(Stride::OneOf(12)).into_iter().filter(torn).collect();
    assert_eq!(failures(numbers.clone(), None), []);
    let found = failures(numbers, Some(Canary::HiddenFailure));
    for what in ["disk write", "append"] {
        assert!(found.iter().any(|(_, failure)| failure.message.contains(what)), "{what}: {found:?}");
    }
}
