//! Runs all fault countdowns of a workload on several threads.
//!
//! The first run of a [`Workload`] counts its calls. [`walk`] then makes one run for each call and each fault that it can meet.

mod number;
mod workload;

pub use number::Number;
pub use workload::Workload;

use crate::countdown::{Countdown, Site};
use crate::run::{Failure, run_counted};
use crate::runner::{RUN_TIME_MAX, RunOptions, run_all};
use crate::trace::traced;
use crate::world::Canary;
use std::collections::BTreeSet;
use tameike_core::Result;

/// Selects countdowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// All countdowns.
    Every,
    /// One of this many, and the first of each kind of call and fault.
    OneOf(usize),
}

/// Runs a workload without faults, and returns its calls.
pub fn count(workload: Workload) -> std::result::Result<Vec<Site>, Failure> {
    let countdown = Countdown::counting();
    run_counted(&workload.program(None), &countdown)?;
    Ok(countdown.counted())
}

/// Returns the countdowns of workloads with these calls.
pub fn numbers(counted: &[(Workload, Vec<Site>)], stride: Stride) -> Vec<Number> {
    let all = counted.iter().flat_map(|(workload, sites)| {
        sites.iter().zip(1..).flat_map(move |(site, call)| {
            let number = move |&fault| (site.call.as_str(), Number { workload: *workload, call, fault });
            site.faults.iter().map(number)
        })
    });
    let mut known = BTreeSet::new();
    let chosen = all.enumerate().filter(|(place, (call, number))| match stride {
        Stride::Every => true,
        Stride::OneOf(count) => known.insert((*call, number.fault)) | (place % count == 0),
    });
    chosen.map(|(_, (_, number))| number).collect()
}

fn run_one(number: &Number, canary: Option<Canary>) -> std::result::Result<(), Failure> {
    let countdown = Countdown::armed(number.call, number.fault);
    let program = number.workload.program(canary);
    let with_site = |failure: Failure| Failure {
        message: match countdown.injected() {
            Some(site) => format!("after {site} ({}): {}", number.fault, failure.message),
            None => failure.message,
        },
        ..failure
    };
    run_counted(&program, &countdown).map_err(with_site)?;
    match countdown.injected() {
        Some(_) => Ok(()),
        None => Err(Failure { step: 0, message: "the workload does not make this call".to_owned() }),
    }
}

/// Runs countdowns, reports each failure at once through `report`, and returns all failures.
///
/// # Errors
/// A thread cannot be started, or a run does not end.
pub fn walk(
    numbers: Vec<Number>,
    how: &RunOptions,
    report: impl Fn(&Number, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(Number, Failure)>> {
    let canary = how.canary;
    run_all(numbers.into_iter(), how, RUN_TIME_MAX, move |number| run_one(number, canary), report)
}

/// Repeats one countdown, with its log.
pub fn replay(number: &Number, canary: Option<Canary>) -> (std::result::Result<(), Failure>, Vec<String>) {
    traced(|| run_one(number, canary))
}
