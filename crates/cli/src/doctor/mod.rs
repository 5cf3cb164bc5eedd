//! `tameike doctor`: what this machine allows, and the one line that mends the rest.

mod checks;

use crate::arguments::DoctorArguments;
use crate::exit;
use crate::report;
use serde::Serialize;
use std::io::Write;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// It works, but slower or less conveniently than it could.
    Slow,
    /// `tameike run` cannot work.
    Missing,
}

/// One line of the doctor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What to do about it; empty when all is well.
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

/// Looks at everything, prints it, and returns the exit code.
pub fn doctor(arguments: &DoctorArguments) -> u8 {
    let checks = checks::all(&arguments.device);
    let works = checks.iter().all(|check| check.outcome != Outcome::Missing);
    let written = if arguments.json { write_json(&checks, works) } else { write_text(&checks, works) };
    if let Err(error) = written {
        report::say(format_args!("printing what was found: {error}"));
        return exit::FAILED;
    }
    if works { 0 } else { exit::FAILED }
}

/// The doctor's findings for programs.
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
