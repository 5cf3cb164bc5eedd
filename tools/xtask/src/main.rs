//! `cargo xtask`: the house lints, and what CI does, as one command.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  lint           check the rules of the house that the compiler and clippy do not know
  header         make tameike.h anew of what crate capi has for C
  ci [--locked]  formatting, clippy, house lints, all tests, by all ways, and those of Python; stops at the first that fails";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["lint"] => lint(),
        ["header"] => xtask::header::write(&xtask::repository_root()),
        ["ci"] => ci(&[]),
        ["ci", "--locked"] => ci(&["--locked"]),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// All house lints on this repository; every finding on a line of its own.
fn lint() -> Result<(), String> {
    let root = xtask::repository_root();
    let findings = xtask::lint(&root)?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("xtask: {count} findings; each line above says what to do")),
    }
}

/// What CI runs; the house lints come before the long steps.
fn ci(locked: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(&cargo, &["fmt", "--all", "--check"], "run `cargo fmt --all`")?;
    println!("xtask: house lints");
    lint()?;
    let clippy = [&["clippy", "--workspace", "--all-targets"], locked, &["--", "-D", "warnings"]].concat();
    run(&cargo, &clippy, "mend what clippy says above")?;
    let test = [&["test", "--workspace", "--no-fail-fast"], locked].concat();
    run(&cargo, &test, "mend what failed above")?;
    // Built with the tests, beside this one: a build of its package alone has other features, and all is built anew after it.
    let own = std::env::current_exe().map_err(|error| format!("xtask: where am I: {error}"))?;
    let built = format!("TAMEIKE={}", own.with_file_name("tameike").display());
    let python = [&[&*built, "scripts/python.sh"], locked].concat();
    run(OsStr::new("env"), &python, "mend what failed above")?;
    run(xtask::repository_root().join("scripts/suites.sh").as_os_str(), locked, "mend what failed above")
}

fn run(program: &OsStr, arguments: &[&str], remedy: &str) -> Result<(), String> {
    let name = Path::new(program).file_name().unwrap_or(program).display();
    println!("xtask: {name} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .current_dir(xtask::repository_root())
        .status()
        .map_err(|error| format!("xtask: cannot start {name}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("xtask: {name} {} failed ({status}): {remedy}", arguments.join(" "))),
    }
}
