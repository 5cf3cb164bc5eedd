//! Random seeds: none fails, each run is deterministic, and every injected bug is detected.

use clap::ValueEnum;
use tameike_sim::program::draw;
use tameike_sim::run::{Failure, run};
use tameike_sim::runner::{RunOptions, run_seeds};
use tameike_sim::shrink::shrink;
use tameike_sim::trace::traced;
use tameike_sim::world::{Canary, Counts, Tally};

/// Seeds of `make test`.
const SEEDS: u64 = 250;
/// Seeds within which each injected bug is detected.
const CANARY_SEEDS: u64 = 1000;
/// Seeds that run twice.
const TWICE: u64 = 25;

/// Seeds of `make test` with these numbers of replicas.
const REPLICATED_SEEDS: [(u32, u64); 2] = [(2, 40), (3, 15)];
/// Seeds within which these bugs of takeovers are detected. Only an agent that hangs shows a lease without end.
const TAKEOVER_BUGS: [(Canary, u64); 2] = [(Canary::EmptyReclaim, 150), (Canary::EndlessLease, 300)];

fn batch(seeds: u64, canary: Option<Canary>, replicas: u32) -> (Vec<(u64, Failure)>, Counts) {
    let (how, tally) = (RunOptions { jobs: 2, canary, replicas, keep_going: false }, Tally::default());
    let failed = run_seeds(0..seeds, &how, tally.clone(), |_, _| {}).expect("the runner works");
    (failed, tally.counts())
}

/// Also checks that every outcome of peer reads stays frequent enough.
#[test]
fn seeds_pass() {
    let (failed, counts) = batch(SEEDS, None, 1);
    if let Some((seed, failure)) = failed.into_iter().next() {
        let (program, failure) = shrink(&draw(seed, None), failure);
        panic!("{program}\nTAMEIKE_SEED={seed}: step {}: {}", failure.step, failure.message);
    }
    println!("{counts}");
    let Counts { sent, hits, misses, busy, failed, cancelled, flipped, detected } = counts;
    assert!(sent > 5 * SEEDS && hits > 2 * SEEDS && misses > SEEDS, "{counts}");
    assert!(busy > 0 && failed + cancelled > SEEDS / 50, "{counts}");
    assert!(flipped > SEEDS / 4 && detected > SEEDS / 100, "{counts}");
}

/// While agents fail, hang and lose each other, programs see errors on excluded nodes only. After each check, all replicas are equal.
#[test]
fn replicas_are_equal() {
    for (replicas, seeds) in REPLICATED_SEEDS {
        let (failed, _) = batch(seeds, None, replicas);
        let failed = failed.first().map(|(seed, failure)| (seed, failure.step, &failure.message));
        assert_eq!(failed, None, "{replicas} replicas");
    }
}

#[test]
fn bugs_of_takeovers_are_detected_soon() {
    for (canary, seeds) in TAKEOVER_BUGS {
        let (found, _) = batch(seeds, Some(canary), 2);
        assert!(!found.is_empty(), "{canary:?} is not detected in {seeds} seeds");
    }
}

/// S21e. It occurs in this seed.
#[test]
fn a_read_during_a_write_of_its_node_may_end_at_the_old_size() {
    assert_eq!(run(&draw(10_671, None)), Ok(()));
}

#[test]
fn a_seed_runs_deterministically() {
    for seed in 0..TWICE {
        let once = || traced(|| run(&draw(seed, None)));
        let ((first, first_log), (second, second_log)) = (once(), once());
        assert_eq!(first, second, "seed {seed}");
        assert!(first_log.len() > 100, "seed {seed} logs too little");
        let differs = first_log.iter().zip(&second_log).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}: line {differs:?} of the log");
        assert_eq!(first_log.len(), second_log.len(), "seed {seed}");
    }
}

#[test]
fn every_injected_bug_is_detected() {
    let is_random = |canary: &&Canary| !canary.is_of_regions() && !canary.is_of_leases();
    for &canary in Canary::value_variants().iter().filter(is_random) {
        let replicas = if canary.is_of_replicas() { 2 } else { 1 };
        let (found, _) = batch(CANARY_SEEDS, Some(canary), replicas);
        let (seed, failure) =
            found.first().unwrap_or_else(|| panic!("{canary:?} is not detected in {CANARY_SEEDS} seeds"));
        println!("{canary:?}: seed {seed}, step {}: {}", failure.step, failure.message);
        let without = run(&draw(*seed, None).replicated(replicas));
        assert_eq!(without, Ok(()), "{canary:?}: the seed fails without the injected bug");
    }
}
