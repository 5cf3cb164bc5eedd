//! Runs the corpus and random mutations of it through every target.
//!
//! `TAMEIKE_SEED` selects other mutations, `PROPTEST_CASES` their number, as for other random tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tameike_fuzz::mutation::{Rng, mutated};
use tameike_fuzz::{TARGETS, Target, corpus, seeds};

/// Mutated inputs per target and proptest case.
const CHANGES_PER_CASE: u64 = 32;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn inputs(name: &str) -> Vec<Vec<u8>> {
    let dir = corpus().join(name);
    let entries = fs::read_dir(&dir).expect("a corpus for each target");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of the corpus")).collect()
}

/// Returns true if the target accepts these bytes without a panic.
fn takes(target: Target, bytes: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).is_ok()
}

fn check(name: &str, target: Target, bytes: &[u8]) {
    let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(takes(target, bytes), "{name} fails on {}", hex());
}

#[test]
fn no_decoder_fails_on_the_corpus_and_mutations_of_it() {
    let seed = number("TAMEIKE_SEED", 1);
    let changes = CHANGES_PER_CASE * number("PROPTEST_CASES", 256);
    println!("TAMEIKE_SEED={seed}, {changes} mutations for each target");
    for (name, target) in TARGETS {
        let (inputs, mut rng) = (inputs(name), Rng::new(seed));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        inputs.iter().for_each(|bytes| check(name, target, bytes));
        for _ in 0..changes {
            check(name, target, &mutated(&inputs, &mut rng));
        }
    }
}

/// A corpus in outdated formats would test nothing.
#[test]
fn the_corpus_has_the_current_formats() {
    for (name, seed, bytes) in seeds::all() {
        let path = corpus().join(name).join(&seed);
        let found = fs::read(&path).unwrap_or_default();
        assert!(
            found == bytes,
            "{}: outdated; regenerate it: cargo run --package tameike-fuzz",
            path.display()
        );
    }
    for (name, _) in TARGETS {
        assert!(seeds::all().iter().any(|(of, ..)| *of == name), "{name} has no seed");
    }
}

/// The test above detects a broken decoder.
#[test]
fn a_broken_decoder_is_detected() {
    let seeds: Vec<Vec<u8>> = vec![b"length=12".to_vec()];
    let broken: Target = |bytes| assert!(!bytes.starts_with(b"length=1\xFF"));
    let mut rng = Rng::new(1);
    let found = (0..100_000).any(|_| !takes(broken, &mutated(&seeds, &mut rng)));
    assert!(found);
}
