//! Fault countdowns over the mixed workloads: every call can fail once with each of its faults, and the checks detect hidden faults.

use tameike_sim::countdown::{Countdown, FaultKind, Site};
use tameike_sim::run::{Failure, run_counted};
use tameike_sim::runner::RunOptions;
use tameike_sim::walk::{Number, Stride, Workload, count, numbers, walk};
use tameike_sim::world::Canary;

/// The test runs one of this many countdowns; `tameike-sim countdowns` runs all.
const STRIDE: usize = 150;

/// The same of failed stores in the workload with replicas.
const STORE_STRIDE: usize = 4;

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

/// The countdowns of the workload with replicas that have this fault, of `chosen` calls. An injected bug changes the calls.
fn of_replicas(fault: FaultKind, canary: Option<Canary>, chosen: impl Fn(&Site) -> bool) -> Vec<Number> {
    let (workload, countdown) = (Workload::Replicas, Countdown::counting());
    assert_eq!(run_counted(&workload.program(canary), &countdown), Ok(()), "it passes without faults");
    let sites = countdown.counted().into_iter().zip(1..);
    let chosen = sites.filter(|(site, _)| site.faults.contains(&fault) && chosen(site));
    chosen.map(|(_, call)| Number { workload, call, fault }).collect()
}

/// A node whose store has failed gives its homes up.
#[test]
fn a_failed_store_ends_no_job_with_replicas() {
    let numbers = of_replicas(FaultKind::Forgotten, None, |_| true);
    assert_eq!(failures(numbers.into_iter().step_by(STORE_STRIDE).collect(), None), []);
}

/// A call that is repeated at the next primary is recognized by its number. A primary whose record is in flight may have replicated the
/// call.
#[test]
fn a_forgotten_call_is_detected() {
    let canary = Some(Canary::ForgottenCall);
    let numbers = of_replicas(FaultKind::Died, canary, |site| site.call == "request Replica Records");
    let found = failures(numbers, canary);
    assert!(found.iter().any(|(_, failure)| failure.message.contains("failed with")), "{found:?}");
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
