//! All countdowns of a workload, one after another, on several threads.
//!
//! A run of a [`Workload`] first counts its calls. [`walk`] then makes one run for each call and each way in which it can fail.

mod number;
mod workload;

pub use number::Number;
pub use workload::Workload;

use crate::countdown::{Countdown, Site};
use crate::run::{Failure, run_counted};
use crate::runner::{Pace, run_all};
use crate::trace::traced;
use crate::world::Canary;
use std::collections::BTreeSet;
use tameike_core::Result;

/// Which of all countdowns are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// Each.
    Every,
    /// One of so many, and the first of each kind of call in each way.
    OneOf(usize),
}

/// How they are run.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// At a time.
    pub jobs: u32,
    /// A bug on purpose.
    pub canary: Option<Canary>,
    /// Whether to go on after a failure.
    pub keep_going: bool,
}

/// The calls of a workload that nothing befalls.
///
/// # Errors
/// It fails all the same.
pub fn count(workload: Workload) -> std::result::Result<Vec<Site>, Failure> {
    let countdown = Countdown::counting();
    run_counted(&workload.program(None), &countdown)?;
    Ok(countdown.counted())
}

/// The countdowns of workloads with these calls.
pub fn numbers(counted: &[(Workload, Vec<Site>)], stride: Stride) -> Vec<Number> {
    let all = counted.iter().flat_map(|(workload, sites)| {
        sites.iter().zip(1..).flat_map(move |(site, call)| {
            let number = move |&way| (site.call.as_str(), Number { workload: *workload, call, way });
            site.ways.iter().map(number)
        })
    });
    let mut known = BTreeSet::new();
    let chosen = all.enumerate().filter(|(place, (call, number))| match stride {
        Stride::Every => true,
        Stride::OneOf(count) => known.insert((*call, number.way)) | (place % count == 0),
    });
    chosen.map(|(_, (_, number))| number).collect()
}

fn run_one(number: &Number, canary: Option<Canary>) -> std::result::Result<(), Failure> {
    let countdown = Countdown::armed(number.call, number.way);
    let program = number.workload.program(canary);
    let told = |failure: Failure| Failure {
        message: match countdown.met() {
            Some(site) => format!("after {site} ({}): {}", number.way.as_str(), failure.message),
            None => failure.message,
        },
        ..failure
    };
    run_counted(&program, &countdown).map_err(told)?;
    match countdown.met() {
        Some(_) => Ok(()),
        None => Err(Failure { step: 0, message: "the workload has no such call".to_owned() }),
    }
}

/// Runs countdowns, tells of each failure as it comes, and which failed in the end.
///
/// # Errors
/// No thread can be started.
pub fn walk(
    numbers: Vec<Number>,
    how: Walk,
    tell: impl Fn(&Number, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(Number, Failure)>> {
    let Walk { jobs, canary, keep_going } = how;
    run_all(numbers.into_iter(), Pace::new(jobs, keep_going), move |number| run_one(number, canary), tell)
}

/// Runs one again, with its log.
pub fn replay(number: &Number, canary: Option<Canary>) -> (std::result::Result<(), Failure>, Vec<String>) {
    traced(|| run_one(number, canary))
}
