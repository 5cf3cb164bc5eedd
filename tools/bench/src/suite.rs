//! A run: every workload on every target, interleaved in each repetition.
//!
//! A turn is one workload on one target, short enough that changes of the machine during a run affect all targets alike.

use crate::clock::Stopwatch;
use crate::coordinator::{self, Limits};
use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::report::{self, Figures};
use crate::target::{self, Target};
use crate::wait::Interrupt;
use crate::workload::Sizes;
use std::time::Duration;

pub fn run(options: &RunOptions) -> Outcome<()> {
    let limits = Limits {
        watch: Stopwatch::start(),
        step: Duration::from_secs(options.limit_s),
        interrupt: Interrupt::listen()?,
    };
    // Fail now rather than after an hour of measurements.
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
        // An empty directory must not look like a report.
        Err(_) => drop(std::fs::remove_dir(&place)),
    }
    outcome
}

fn measure(options: &RunOptions, limits: &Limits) -> Outcome<(Vec<Target>, Figures)> {
    let sizes = sizes(options);
    let repetitions = if options.tiny { 1 } else { options.repetitions };
    let targets = target::start_all(options, limits)?;
    base(options, &targets)?;
    let (mut figures, mut turn) = (Figures::default(), 0);
    let turns = options.workloads().len() * repetitions as usize * targets.len();
    for &workload in options.workloads() {
        for repetition in 0..repetitions {
            for target in &targets {
                turn += 1;
                if figures.has_failed(workload, &target.label.name) {
                    continue;
                }
                let plan = sizes.plan(workload, options.ranks, options.seed, turn)?;
                print!("{turn}/{turns}, {:.0} s: ", limits.watch.elapsed().as_secs_f64());
                match coordinator::run(&plan, &target.place, limits) {
                    Ok(done) => figures.add(workload, target, repetition, &done),
                    // The failure of another file system is a result too.
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
        true => Sizes::TINY,
        false => Sizes {
            size_bytes: options.size_mib << 20,
            files: options.files,
            large_files: options.large_files,
            operations: options.operations,
        },
    }
}

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
