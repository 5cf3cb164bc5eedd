//! Seeds of the simulated cluster: none fails, each is the same run every time, and every bug on purpose is found.

use tameike_sim::program::draw;
use tameike_sim::run::{Failure, run};
use tameike_sim::runner::{Batch, run_batch};
use tameike_sim::shrink::shrink;
use tameike_sim::trace::traced;
use tameike_sim::world::{Canary, Counts, Tally};

/// Seeds of `make test`.
const SEEDS: u64 = 400;
/// Seeds within which each bug on purpose is found.
const CANARY_SEEDS: u64 = 1000;
/// Seeds that are run twice.
const TWICE: u64 = 25;

fn batch(seeds: u64, canary: Option<Canary>) -> (Vec<(u64, Failure)>, Counts) {
    let batch = Batch { seeds: 0..seeds, jobs: 2, canary, keep_going: false, tally: Tally::default() };
    let failed = run_batch(&batch, |_, _| {}).expect("the runner works");
    (failed, batch.tally.counts())
}

/// With the counts of what became of requests to holders, so that this does not come to be seldom and nobody notice.
#[test]
fn seeds_pass() {
    let (failed, counts) = batch(SEEDS, None);
    if let Some((seed, failure)) = failed.into_iter().next() {
        let (program, failure) = shrink(&draw(seed, None), failure);
        panic!("{program}\nTAMEIKE_SEED={seed}: step {}: {}", failure.step, failure.message);
    }
    println!("{counts}");
    let Counts { asked, had, not_held, busy, failed, given_up, flipped, found } = counts;
    assert!(asked > 5 * SEEDS && had > 2 * SEEDS && not_held > SEEDS, "{counts}");
    assert!(busy > 0 && failed + given_up > SEEDS / 50, "{counts}");
    assert!(flipped > SEEDS / 4 && found > SEEDS / 100, "{counts}");
}

/// S21e. In this seed one does.
#[test]
fn a_read_beside_a_write_of_its_node_may_end_at_the_former_end() {
    assert_eq!(run(&draw(10_671, None)), Ok(()));
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in 0..TWICE {
        let once = || traced(|| run(&draw(seed, None)));
        let ((first, first_log), (second, second_log)) = (once(), once());
        assert_eq!(first, second, "seed {seed}");
        assert!(first_log.len() > 100, "seed {seed} logs next to nothing");
        let differs = first_log.iter().zip(&second_log).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}: line {differs:?} of the log");
        assert_eq!(first_log.len(), second_log.len(), "seed {seed}");
    }
}

#[test]
fn every_canary_is_found() {
    for canary in Canary::ALL {
        let (found, _) = batch(CANARY_SEEDS, Some(canary));
        let (seed, failure) =
            found.first().unwrap_or_else(|| panic!("{canary:?} is not found in {CANARY_SEEDS} seeds"));
        println!("{canary:?}: seed {seed}, step {}: {}", failure.step, failure.message);
        assert_eq!(run(&draw(*seed, None)), Ok(()), "{canary:?}: it is not the canary that was found");
    }
}
