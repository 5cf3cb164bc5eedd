//! Runs every workload on every target, alternately, repetition by repetition.
//!
//! A turn is one workload on one target, and short, so that changes of the machine during a run affect all targets.

use crate::coordinator;
use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::place::Limits;
use crate::report::{self, Figures};
use crate::target::{self, Target, Targets};
use crate::workload::Sizes;

/// Measures, and writes the report.
pub fn run(options: &RunOptions) -> Outcome<()> {
    let limits = Limits::new(options.report.limit_s)?;
    // A name that is in use fails here, before an hour of measuring.
    report::in_directory(&options.report.out, &options.name, |place| {
        let (targets, figures) = measure(options, &limits)?;
        let base = base(options, &targets)?;
        let report = report::Report::new(options, &targets, base, figures)?;
        targets.stop()?;
        report.write(place)
    })
}

fn measure(options: &RunOptions, limits: &Limits) -> Outcome<(Targets, Figures)> {
    let sizes = sizes(options);
    let repetitions = if options.tiny { 1 } else { options.repetitions };
    let mut targets = target::start_all(options, limits)?;
    base(options, &targets)?;
    let (mut figures, mut turn) = (Figures::default(), 0);
    let turns = options.workloads().len() * repetitions as usize * targets.len();
    for &workload in options.workloads() {
        for repetition in 0..repetitions {
            for target in targets.iter_mut() {
                turn += 1;
                if !target.can_run(workload) || figures.has_failed(workload, &target.label.name) {
                    continue;
                }
                let plan = sizes.plan(workload, options.ranks, options.seed, turn)?;
                print!("{turn}/{turns}, {:.0} s: ", limits.watch.elapsed().as_secs_f64());
                match coordinator::run(&plan, target, limits) {
                    Ok(done) => figures.add(workload, target, repetition, &done),
                    // A workload that another file system cannot do is a result.
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
            file_bytes: options.file_bytes,
            operations: options.operations,
        },
    }
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
