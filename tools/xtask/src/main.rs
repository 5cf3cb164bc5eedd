//! `cargo xtask`: the house lints, and all steps of CI.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  lint           check the house rules that the compiler and clippy do not check
  header         generate tameike.h from crates/capi
  ci [--locked]  formatting, house lints, clippy, all tests, Python tests, other test suites; stops at the first failure";

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

/// Runs all house lints on this repository, and prints one finding per line. Advice is printed too, and does not fail.
fn lint() -> Result<(), String> {
    let root = xtask::repository_root();
    let xtask::Report { findings, advice, means } = xtask::lint(&root)?;
    for finding in &findings {
        println!("{finding}");
    }
    for advice in &advice {
        println!("advice: {advice}");
    }
    for (path, mean) in means {
        println!("xtask: {}: {mean:.1} words per sentence", path.display());
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("xtask: {count} findings; each line above gives a remedy")),
    }
}

/// Runs the steps of CI, short ones first. Prints the time of each step at the end.
fn ci(locked: &[&str]) -> Result<(), String> {
    let mut times = Vec::new();
    let outcome = ci_steps(locked, &mut times);
    println!("xtask: seconds of each step");
    for (step, time) in times {
        println!("xtask: {:7.0} {step}", time.as_secs_f64());
    }
    outcome
}

#[expect(clippy::disallowed_methods, reason = "the steps take real time")]
fn ci_steps(locked: &[&str], times: &mut Vec<(&'static str, Duration)>) -> Result<(), String> {
    let mut step = |name, act: &dyn Fn() -> Result<(), String>| {
        let begin = Instant::now();
        let outcome = act();
        times.push((name, begin.elapsed()));
        outcome
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let cargo = |words: &[&str], remedy: &str| run(&cargo, words, remedy);
    step("formatting", &|| cargo(&["fmt", "--all", "--check"], "run `cargo fmt --all`"))?;
    step("house lints", &lint)?;
    let clippy = [&["clippy", "--workspace", "--all-targets"], locked, &["--", "-D", "warnings"]].concat();
    step("clippy", &|| cargo(&clippy, "correct what clippy reports above"))?;
    let build = [&["test", "--workspace", "--no-run"], locked].concat();
    step("build of the tests", &|| cargo(&build, "correct the errors above"))?;
    // Some tests wait most of their time: one thread more than processors keeps these busy.
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get() + 1);
    let threads = format!("--test-threads={threads}");
    let test = [&["test", "--workspace", "--no-fail-fast"], locked, &["--", &threads]].concat();
    step("tests", &|| cargo(&test, "correct what failed above"))?;
    // The tests have built the program next to this one. Building its package alone would enable other features and rebuild all crates.
    let own =
        std::env::current_exe().map_err(|error| format!("xtask: cannot find its own executable: {error}"))?;
    let built = format!("TAMEIKE={}", own.with_file_name("tameike").display());
    let python = [&[&*built, "scripts/python.sh"], locked].concat();
    step("Python package", &|| run(OsStr::new("env"), &python, "correct what failed above"))?;
    let suites = xtask::repository_root().join("scripts/suites.sh");
    step("other test suites", &|| run(suites.as_os_str(), locked, "correct what failed above"))
}

fn run(program: &OsStr, arguments: &[&str], remedy: &str) -> Result<(), String> {
    let name = Path::new(program).file_name().unwrap_or(program).display();
    println!("xtask: {name} {}", arguments.join(" "));
    let root = xtask::repository_root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // scripts/install-deps.sh links the interpreter there.
    let mut path = target.join("tools/bin").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let status = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .current_dir(root)
        .status()
        .map_err(|error| format!("xtask: cannot start {name}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("xtask: {name} {} failed ({status}): {remedy}", arguments.join(" "))),
    }
}
