//! The machine and the build of a run.

use crate::outcome::{Context, Outcome, output_of};
use crate::slow_server;
use serde::Serialize;
use std::fs;
use std::process::Command;

/// The machine and the build.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// When: year-month-day, in UTC.
    pub date: String,
    pub command: String,
    /// The commit that the working directory is at; with `-dirty` when files differ from it.
    pub commit: String,
    /// The kernel's version.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// The model of the first processor.
    pub processor: String,
    /// How many there are for this program.
    pub processors: usize,
    pub memory_bytes: u64,
    pub version: String,
}

impl Machine {
    /// Detects the machine that this runs on.
    pub fn detect() -> Outcome<Self> {
        let memory_kib =
            field("/proc/meminfo", "MemTotal:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Ok(Self {
            date: date()?,
            command: command(),
            commit: commit(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            system: field("/etc/os-release", "PRETTY_NAME=").unwrap_or_default().trim_matches('"').to_owned(),
            processor: field("/proc/cpuinfo", "model name\t:").unwrap_or_default(),
            processors: std::thread::available_parallelism().context(|| "count processors")?.get(),
            memory_bytes: memory_kib.unwrap_or(0) << 10,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

impl Machine {
    /// Processors, system and commit in one line.
    pub fn summary(&self) -> String {
        let Self { processors, processor, system, kernel, commit, .. } = self;
        format!("{processors} processors ({processor}), {system}, Linux {kernel}, commit {commit}")
    }
}

/// The command line, with that of the slow server around it.
fn command() -> String {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    std::env::var(slow_server::INSIDE).map_or(command.clone(), |outer| format!("{outer} -- {command}"))
}

/// Today, in UTC.
pub fn date() -> Outcome<String> {
    Ok(output_of(Command::new("date").args(["--utc", "+%F"]), "")?.trim().to_owned())
}

/// What follows `name` in a file of one thing per line.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

fn commit() -> String {
    let git = |arguments: &[&str]| output_of(Command::new("git").args(arguments), "");
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Ok(commit), Ok(changes)) if changes.is_empty() => commit.trim().to_owned(),
        (Ok(commit), _) => format!("{}-dirty", commit.trim()),
        (Err(_), _) => "unknown".to_owned(),
    }
}
