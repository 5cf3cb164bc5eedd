//! Random programs on shared memory regions: none fails, each run is deterministic, and every injected bug is detected.

use tameike_sim::region::{Fault, RegionProgram, draw, run, run_seeds};
use tameike_sim::run::Failure;
use tameike_sim::runner::RunOptions;
use tameike_sim::trace::traced;
use tameike_sim::world::Canary;

/// Seeds of `make test`.
const SEEDS: u64 = 300;
/// Seeds within which each injected bug is detected.
const CANARY_SEEDS: u64 = 300;
/// Seeds that run twice.
const TWICE: u64 = 10;
/// Injected bugs that programs on regions must detect, besides those that only they can.
const OTHERS: [Canary; 5] = [
    Canary::LostFlush,
    Canary::StaleRead,
    Canary::UnrequestedLock,
    Canary::KeptLock,
    Canary::UnreportedFailure,
];

fn batch(seeds: u64, canary: Option<Canary>) -> Vec<(u64, Failure)> {
    let how = RunOptions { jobs: 2, canary, replicas: 1, keep_going: false };
    run_seeds(0..seeds, &how, |_, _| {}).expect("the runner works")
}

#[test]
fn seeds_of_regions_pass() {
    if let Some((seed, Failure { step, message })) = batch(SEEDS, None).first() {
        panic!("tameike-sim regions --replay {seed}: round {step}: {message}");
    }
}

/// The coordinator failed, and was below a node that waited for its arrival.
#[test]
fn a_barrier_fails_with_the_coordinator_below_a_node() {
    assert_eq!(run(&draw(4239, None)), Ok(()));
}

/// All kinds of programs and faults are drawn often enough.
#[test]
fn programs_on_regions_are_of_all_kinds() {
    let programs: Vec<_> = (0..SEEDS).map(|seed| draw(seed, None)).collect();
    let count = |is_meant: fn(&RegionProgram) -> bool| {
        programs.iter().filter(|program| is_meant(program)).count() as u64
    };
    let kinds: [fn(&RegionProgram) -> bool; 7] = [
        |program| program.world.devices.len() > 9,
        |program| program.pages == 1,
        |program| program.pages > 512,
        |program| program.processes.iter().any(|place| place.alone),
        |program| program.faults().any(|fault| matches!(fault, Fault::Ends { claims: true, .. })),
        |program| program.faults().any(|fault| matches!(fault, Fault::Detaches { .. })),
        |program| program.faults().any(|fault| matches!(fault, Fault::NodeFails { .. })),
    ];
    for (kind, number) in kinds.into_iter().zip(0..) {
        assert!(count(kind) > SEEDS / 50, "kind {number}: {}", count(kind));
    }
}

#[test]
fn a_seed_of_regions_runs_deterministically() {
    for seed in 0..TWICE {
        let once = || traced(|| run(&draw(seed, None)));
        let (first, second) = (once(), once());
        assert!(first.1.len() > 50, "seed {seed} logs too little");
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn every_injected_bug_of_regions_is_detected() {
    use clap::ValueEnum;
    let own = Canary::value_variants().iter().copied().filter(|canary| canary.is_of_regions());
    for canary in own.chain(OTHERS) {
        let found = batch(CANARY_SEEDS, Some(canary));
        let (seed, failure) = found.first().unwrap_or_else(|| panic!("{canary:?} is not detected"));
        println!("{canary:?}: seed {seed}, round {}: {}", failure.step, failure.message);
    }
}
