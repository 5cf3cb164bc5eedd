//! `tameike doctor`: checks what this machine supports, and prints a command that fixes each problem.

mod checks;

use crate::arguments::DoctorArguments;
use crate::exit;
use crate::report;
use serde::Serialize;
use std::io::Write;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The machine supports it.
    Ok,
    /// Works, but slowly or less conveniently.
    Slow,
    /// `tameike run` cannot work.
    Missing,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its subject.
    pub name: &'static str,
    /// Its outcome.
    pub outcome: Outcome,
    /// The finding.
    pub found: String,
    /// A command or advice that fixes the problem; empty without a problem.
    pub mend: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, found: found.into(), mend: String::new() }
    }

    fn slow(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Slow, found: found.into(), mend: mend.into() }
    }

    fn missing(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Missing, found: found.into(), mend: mend.into() }
    }
}

/// Runs all checks, prints them, and returns the exit code.
pub fn doctor(arguments: &DoctorArguments) -> u8 {
    let checks = checks::all(&arguments.device);
    let works = checks.iter().all(|check| check.outcome != Outcome::Missing);
    let written = if arguments.json { write_json(&checks, works) } else { write_text(&checks, works) };
    if let Err(error) = written {
        report::say(format_args!("printing the checks: {error}"));
        return exit::FAILED;
    }
    if works { 0 } else { exit::FAILED }
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    works: bool,
    checks: &'a [Check],
}

fn write_json(checks: &[Check], works: bool) -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(&Document { works, checks })?;
    writeln!(std::io::stdout(), "{text}")
}

fn write_text(checks: &[Check], works: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for check in checks {
        let outcome = match check.outcome {
            Outcome::Ok => "ok     ",
            Outcome::Slow => "slow   ",
            Outcome::Missing => "MISSING",
        };
        writeln!(out, "{outcome}  {:<16} {}", check.name, check.found)?;
        if !check.mend.is_empty() {
            writeln!(out, "{:9}{:<16} -> {}", "", "", check.mend)?;
        }
    }
    let sum = if works { "`tameike run` can work here" } else { "`tameike run` cannot work here yet" };
    writeln!(out, "{sum}")
}
