//! C programs that make every kind of call and print the results, which must be the same with and without the library.

use crate::directory::{Bed, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the program `name` of `tests/calls`.
pub fn build(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls").join(name).with_extension("c");
    let program = into.join(name);
    let mut compiler = Command::new("cc");
    // The programs misuse functions on purpose.
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("cc").success(), "{} does not compile", source.display());
    program
}

/// Runs the program without and with the library, and with an agent for each of `declines_each`.
fn compare(name: &str, declines_each: &[u64]) {
    let programs = tempfile::tempdir().expect("a directory");
    let program = build(name, programs.path());
    for declines_each in declines_each {
        println!("{name}, of whose requests every {declines_each}th is declined");
        let bed = Bed::new(*declines_each);
        let expected = run(&mut bed.without(&program));
        bed.compare(&run(&mut bed.with_ring(&program)), &expected, 10);
    }
}

#[test]
fn data_sizes_flags_and_failures() {
    compare("files", &[0, 2, 3, 5]);
}

#[test]
fn names_relative_and_absolute() {
    compare("names", &[0, 2, 3, 5]);
}

#[test]
fn calls_that_only_the_kernel_can_serve() {
    compare("kernel", &[0, 3, 7]);
}

#[test]
fn numbers_of_descriptors() {
    compare("numbers", &[0, 2]);
}

#[test]
fn children_and_ends_of_processes() {
    compare("children", &[0, 3, 7]);
}

#[test]
fn threads_signals_and_cancellation() {
    compare("threads", &[0, 1000]);
}
