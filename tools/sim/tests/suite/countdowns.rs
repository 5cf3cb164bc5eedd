//! Countdowns over the mixed workloads: each kind of call fails once in each of its ways, and the checks can tell.

use tameike_sim::countdown::Way;
use tameike_sim::run::Failure;
use tameike_sim::walk::{Number, Stride, Walk, Workload, count, numbers, walk};
use tameike_sim::world::Canary;

/// Of all countdowns, one of so many is run here; `tameike-sim countdowns` runs all.
const STRIDE: usize = 80;

fn chosen(stride: Stride) -> Vec<Number> {
    let all = Workload::ALL.map(|workload| (workload, count(workload).expect("nothing befalls it")));
    numbers(&all, stride)
}

fn failures(numbers: Vec<Number>, canary: Option<Canary>) -> Vec<(Number, Failure)> {
    let how = Walk { jobs: 2, canary, keep_going: true };
    walk(numbers, how, |_, _| {}).expect("the runner works")
}

#[test]
fn every_kind_of_call_may_fail_once() {
    if let Some((number, failure)) = failures(chosen(Stride::OneOf(STRIDE)), None).first() {
        let Failure { step, message } = failure;
        panic!("tameike-sim countdowns --replay {number}: step {step}: {message}");
    }
}

/// A disk that says of a failed write that it is done: bytes and records are lost without a word.
#[test]
fn a_failure_that_is_hidden_is_found() {
    let torn = |number: &Number| number.way == Way::Torn;
    let numbers: Vec<_> = chosen(Stride::OneOf(12)).into_iter().filter(torn).collect();
    assert_eq!(failures(numbers.clone(), None), []);
    let found = failures(numbers, Some(Canary::HiddenFailure));
    for what in ["disk write", "append"] {
        assert!(found.iter().any(|(_, failure)| failure.message.contains(what)), "{what}: {found:?}");
    }
}
