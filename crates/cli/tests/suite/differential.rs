//! Random system calls of one process return on each view what they return on a local file system.

use crate::support::jobs::seed;
use crate::support::{Run, Site, helper, is_soak, succeed, utf8};
use std::collections::BTreeMap;
use std::process::Command;

const STEPS: usize = 300;
/// Steps that are shown if a seed fails.
const STEPS_SHOWN: usize = 12;

/// The results of the steps of each seed.
fn by_seed(output: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut seeds = BTreeMap::<_, Vec<_>>::new();
    for line in output.lines() {
        seeds.entry(line.split('/').next().unwrap_or_default()).or_default().push(line);
    }
    seeds
}

fn compare(view: &str, reference: &str, found: &str) {
    let (reference, found) = (by_seed(reference), by_seed(found));
    for (seed, wanted) in &reference {
        let got = found.get(seed).map(Vec::as_slice).unwrap_or_default();
        let differs = |step: &usize| wanted.get(*step) != got.get(*step);
        let step = (0..wanted.len().max(got.len())).find(differs).unwrap_or(wanted.len());
        assert_eq!(
            got.get(step),
            wanted.get(step),
            "{view}, seed {seed}; what returned the same before: {:#?}",
            &wanted[step.saturating_sub(STEPS_SHOWN)..step]
        );
    }
}

/// Runs the same programs on a local file system in memory and on the views of a job.
fn run(options: &[&str]) {
    let (first, count) = if is_soak() { (seed() % 1_000_000, 1000) } else { (0, 12) };
    let site = Site::new();
    let local = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let (program, seeds) = (helper("differential.py"), format!("{first} {count} {STEPS}"));
    let mut python = Command::new("python3");
    let reference = succeed(python.arg(&program).arg(local.path()).args(seeds.split(' ')));
    let views = ["SHARED", "CACHE", "NODE_LOCAL"];
    let script = views
        .map(|view| format!("mkdir $TAMEIKE_{view}/d; python3 {program} $TAMEIKE_{view}/d {seeds} > {view}"))
        .join("\n");
    let script = format!("cd {}; {script}", local.path().display());
    let device = ["--device", utf8(site.disk())];
    site.job(2, &[&device, options].concat(), &script).exits(0);
    for view in views {
        let found = std::fs::read_to_string(local.path().join(view)).expect("written");
        compare(view, &reference, &found);
    }
}

/// S22a, and all other calls.
///
/// Regressions: stores to mappings of a file with `O_APPEND` were appended, and a change of that flag was ignored.
#[test]
fn random_calls_return_what_they_return_on_a_local_file_system() {
    run(&[]);
}

/// S31a.
#[test]
fn random_calls_of_preloaded_programs_return_what_they_return_on_a_local_file_system() {
    run(&["--preload"]);
}
