//! A whole run: every workload on every target, in turn, repetition by repetition.
//!
//! Turns are short (one workload on one target), so that whatever changes on the machine during a run changes
//! for all targets alike.

use crate::clock::Stopwatch;
use crate::coordinator::{self, Limits};
use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::report::{self, Figures};
use crate::servers;
use crate::target::{self, Target};
use crate::wait::Interrupt;
use crate::workload::{Group, Plan, Workload};
use std::time::Duration;

/// At most so much is read again and again where only the time of one read matters.
const LATENCY_BYTES: u64 = 64 << 20;

/// What is done in each turn.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    repetitions: u32,
    size_bytes: u64,
    files: u32,
    large_files: u32,
    operations: u32,
}

/// Measures, and writes the report.
pub fn run(options: &RunOptions) -> Outcome<()> {
    let limits = Limits {
        watch: Stopwatch::start(),
        step: Duration::from_secs(options.limit_s),
        interrupt: Interrupt::listen()?,
    };
    // Refused now rather than after an hour of measuring.
    let place = report::make_directory(&options.out, &options.name)?;
    let outcome = measure(options, &limits).and_then(|(targets, figures)| {
        let base = base(options, &targets)?;
        let report = report::Report::new(options, &targets, base, figures)?;
        for target in targets {
            target.stop()?;
        }
        report.write(&place)
    });
    match &outcome {
        Ok(()) => println!("report: {}", place.join("report.md").display()),
        // Nothing was written: an empty directory must not pass for a report.
        Err(_) => drop(std::fs::remove_dir(&place)),
    }
    outcome
}

fn measure(options: &RunOptions, limits: &Limits) -> Outcome<(Vec<Target>, Figures)> {
    let sizes = sizes(options);
    let targets = target::start_all(options, limits)?;
    base(options, &targets)?;
    let (mut figures, mut turn) = (Figures::default(), 0);
    let turns = options.workloads().len() * sizes.repetitions as usize * targets.len();
    for &workload in options.workloads() {
        for repetition in 0..sizes.repetitions {
            for target in &targets {
                turn += 1;
                if figures.has_failed(workload, &target.label.name) {
                    continue;
                }
                let plan = plan(options, sizes, workload, turn)?;
                print!("{turn}/{turns}, {:.0} s: ", limits.watch.elapsed().as_secs_f64());
                match coordinator::run(&plan, &target.place, limits) {
                    Ok(done) => figures.add(workload, target, repetition, &done),
                    // What another file system cannot do is a result, too.
                    Err(message) if target.is_peer() && limits.interrupt.check().is_ok() => {
                        figures.fail(workload, &target.label.name, message);
                    }
                    Err(message) => {
                        return Err(format!("{workload:?} on {}: {message}", target.label.name));
                    }
                }
            }
        }
    }
    Ok((targets, figures))
}

fn sizes(options: &RunOptions) -> Sizes {
    match options.tiny {
        true => Sizes {
            repetitions: 1,
            // No whole number of calls, so that the last call is a short one.
            size_bytes: (3 << 20) + 8192,
            files: 20,
            large_files: 3,
            operations: 40,
        },
        false => Sizes {
            repetitions: options.repetitions,
            size_bytes: options.size_mib << 20,
            files: options.files,
            large_files: options.large_files,
            operations: options.operations,
        },
    }
}

fn plan(options: &RunOptions, sizes: Sizes, workload: Workload, turn: usize) -> Outcome<Plan> {
    Ok(Plan {
        workload,
        ranks: workload.ranks(options.ranks),
        // Other bytes in every turn: what an earlier turn left behind never passes for this one's.
        seed: options.seed.wrapping_add(turn as u64),
        size_bytes: match workload {
            // The node's cache is to hold all of it.
            Workload::Latency | Workload::LatencyPinned => sizes.size_bytes.min(LATENCY_BYTES),
            _ => sizes.size_bytes,
        },
        files: match workload.group() {
            Group::Mebibyte => sizes.large_files,
            _ => sizes.files,
        },
        operations: sizes.operations,
        processor: match workload.is_pinned() {
            true => Some(servers::first_and_last_processor()?.0),
            false => None,
        },
        run: format!("run-{}-{turn}", std::process::id()),
    })
}

/// The target that ratios are relative to.
fn base(options: &RunOptions, targets: &[Target]) -> Outcome<String> {
    let names: Vec<&str> = targets.iter().map(|target| target.label.name.as_str()).collect();
    let wanted = match &options.base {
        Some(base) => base.as_str(),
        None if names.contains(&"tmpfs") => "tmpfs",
        None => names[0],
    };
    match names.contains(&wanted) {
        true => Ok(wanted.to_owned()),
        false => Err(format!("--base {wanted}: there are only {}", names.join(", "))),
    }
}
