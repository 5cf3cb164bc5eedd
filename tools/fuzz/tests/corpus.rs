//! The short run: the corpus, and random changes of it, through every target.
//!
//! `TAMEIKE_SEED` chooses other changes, `PROPTEST_CASES` more of them, as for the other random tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tameike_fuzz::mutation::{Chance, mutated};
use tameike_fuzz::{TARGETS, Target, corpus, seeds};

/// Changed inputs for each target and proptest case.
const CHANGES_PER_CASE: u64 = 32;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn inputs(name: &str) -> Vec<Vec<u8>> {
    let dir = corpus().join(name);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of the corpus")).collect()
}

/// Whether the target takes these bytes.
fn takes(target: Target, bytes: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).is_ok()
}

fn check(name: &str, target: Target, bytes: &[u8]) {
    let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(takes(target, bytes), "{name} fails on {}", hex());
}

#[test]
fn the_corpus_and_random_changes_of_it_break_no_decoder() {
    let seed = number("TAMEIKE_SEED", 1);
    let changes = CHANGES_PER_CASE * number("PROPTEST_CASES", 256);
    println!("TAMEIKE_SEED={seed}, {changes} changes for each target");
    for (name, target) in TARGETS {
        let (inputs, mut chance) = (inputs(name), Chance::new(seed));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        inputs.iter().for_each(|bytes| check(name, target, bytes));
        for _ in 0..changes {
            check(name, target, &mutated(&inputs, &mut chance));
        }
    }
}

/// A corpus of bytes that no version writes any more would test nothing.
#[test]
fn the_corpus_has_what_is_written_today() {
    for (name, seed, bytes) in seeds::all() {
        let path = corpus().join(name).join(&seed);
        let found = fs::read(&path).unwrap_or_default();
        assert!(found == bytes, "{}: make it anew: cargo run --package tameike-fuzz", path.display());
    }
    for (name, _) in TARGETS {
        assert!(seeds::all().iter().any(|(of, ..)| *of == name), "{name} has no seed");
    }
}

/// What a broken decoder would do, and what the run above would then say.
#[test]
fn a_broken_decoder_is_found() {
    let seeds: Vec<Vec<u8>> = vec![b"length=12".to_vec()];
    let broken: Target = |bytes| assert!(!bytes.starts_with(b"length=1\xFF"));
    let mut chance = Chance::new(1);
    let found = (0..100_000).any(|_| !takes(broken, &mutated(&seeds, &mut chance)));
    assert!(found);
}
