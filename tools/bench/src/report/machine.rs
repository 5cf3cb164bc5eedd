//! The machine and the build that were measured.

use crate::outcome::{Context, Outcome};
use serde::Serialize;
use std::fs;
use std::process::Command;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The date of the run, year-month-day, in UTC.
    pub date: String,
    pub command: String,
    /// The commit of the working directory; with `-dirty` if files differ from it.
    pub commit: String,
    /// The kernel's version.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// The model of the first processor.
    pub processor: String,
    /// The number of processors available to this program.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The version of this program.
    pub version: String,
}

impl Machine {
    pub fn inspect() -> Outcome<Self> {
        let memory_kib =
            field("/proc/meminfo", "MemTotal:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Ok(Self {
            date: date()?,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            commit: commit(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            system: field("/etc/os-release", "PRETTY_NAME=").unwrap_or_default().trim_matches('"').to_owned(),
            processor: field("/proc/cpuinfo", "model name")
                .unwrap_or_default()
                .trim_start_matches(": ")
                .to_owned(),
            processors: std::thread::available_parallelism().context(|| "count processors")?.get(),
            memory_bytes: memory_kib.unwrap_or(0) << 10,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

/// Today's date in UTC.
pub fn date() -> Outcome<String> {
    let output = Command::new("date").args(["--utc", "+%F"]).output().context(|| "start date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The rest of the line that starts with `name`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => commit + "-dirty",
        (None, _) => "unknown".to_owned(),
    }
}
