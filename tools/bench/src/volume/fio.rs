//! Runs of fio on a host: a job per file, timed without verification, and verified in a pass of its own.

use super::hosts::Hosts;
use super::sample::Measured;
use crate::outcome::{Context, Outcome, output_of};
use serde_json::Value;

/// Files that are read and written at the same time, each by a process.
pub const JOBS: u32 = 4;

/// The option of a run that is measured.
pub const MEASURE: &str = "--do_verify=0";
/// The option of a run that compares what an earlier one wrote.
pub const VERIFY: &str = "--verify_only=1";

/// Reads or writes of a set of files.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The first part of the files' names.
    pub files: &'static str,
    /// How many files, each with a process.
    pub jobs: u32,
    /// The `rw` of fio.
    pub pattern: &'static str,
    /// Bytes of a call.
    pub block: u64,
    /// Bytes of each file.
    pub size: u64,
    /// Bytes that each process reads or writes.
    pub amount: u64,
    /// Whether calls bypass the page cache.
    pub direct: bool,
    /// Whether each write is followed by `fdatasync`.
    pub sync: bool,
    /// A number of the content that is written, different for each pass.
    pub pass: u32,
}

impl Job {
    /// Returns true if it writes.
    pub fn writes(&self) -> bool {
        self.pattern.contains("write")
    }

    /// Runs it in `directory` of a host, and returns what fio measured. Writes end with `fsync`.
    pub fn run(&self, hosts: &Hosts, host: usize, directory: &str) -> Outcome<Measured> {
        let output = self.call(hosts, host, directory, MEASURE)?;
        self.measured(&output)
    }

    /// Writes its files unless they have their size.
    pub fn fill(&self, hosts: &Hosts, host: usize, directory: &str) -> Outcome<()> {
        let sizes = (0..self.jobs).map(|job| hosts.size(host, &format!("{directory}/{}-{job}", self.files)));
        match sizes.min() {
            Some(least) if least >= self.size => Ok(()),
            _ => self.run(hosts, host, directory).map(drop),
        }
    }

    /// Reads what [`Self::run`] wrote, and compares every byte.
    pub fn verify(&self, hosts: &Hosts, host: usize, directory: &str) -> Outcome<()> {
        let output = self.call(hosts, host, directory, VERIFY)?;
        let blocks = self.blocks();
        match group(&output)?["read"]["total_ios"].as_u64() {
            Some(read) if read == blocks => Ok(()),
            read => Err(format!("fio verified {read:?} of {blocks} blocks")),
        }
    }

    fn blocks(&self) -> u64 {
        self.amount / self.block * u64::from(self.jobs)
    }

    fn call(&self, hosts: &Hosts, host: usize, directory: &str, option: &str) -> Outcome<String> {
        let mut command = hosts.command(host, "timeout");
        command.args(hosts.limited("fio")).args(self.words(directory, option));
        output_of(&mut command, " (Debian's fio)")
    }

    /// Arguments of fio, with an option for this run.
    pub fn words(&self, directory: &str, option: &str) -> Vec<String> {
        let mut words = self.arguments(directory);
        words.push(option.to_owned());
        words.extend((0..self.jobs).flat_map(|job| self.section(job)));
        words
    }

    /// Options of all processes.
    fn arguments(&self, directory: &str) -> Vec<String> {
        let Self { pattern, block, size, amount, .. } = self;
        let mut words = vec![
            "--output-format=json".to_owned(),
            "--group_reporting".to_owned(),
            "--ioengine=psync".to_owned(),
            "--fallocate=none".to_owned(),
            "--verify_state_save=0".to_owned(),
            format!("--directory={directory}"),
            format!("--rw={pattern}"),
            format!("--bs={block}"),
            format!("--size={size}"),
            format!("--io_size={amount}"),
            format!("--direct={}", u8::from(self.direct)),
        ];
        if self.writes() {
            words.push("--end_fsync=1".to_owned());
            words.push("--verify=pattern".to_owned());
        }
        if self.sync {
            words.push("--fdatasync=1".to_owned());
        }
        words
    }

    /// Options of one process: its file, and content that names pass, file and offset.
    fn section(&self, job: u32) -> Vec<String> {
        let Self { files, pass, .. } = self;
        let mut words = vec![
            format!("--name={files}-{job}"),
            format!("--filename={files}-{job}"),
            format!("--randseed={}", pass * 1000 + job + 1),
        ];
        if self.writes() {
            words.push(format!("--verify_pattern=0x{:08x}%o", (pass << 8) + job));
        }
        words
    }

    /// The figures in the output of fio.
    pub fn measured(&self, output: &str) -> Outcome<Measured> {
        let group = group(output)?;
        let way = &group[if self.writes() { "write" } else { "read" }];
        let number = |value: &Value| value.as_f64().ok_or_else(|| "fio's output lacks a figure".to_owned());
        let (operations, bytes) = (number(&way["total_ios"])?, number(&way["io_bytes"])?);
        // Of the process that took longest, with the fsync at its end.
        let seconds = number(&way["runtime"])? / 1000.0;
        if operations != self.blocks() as f64 || seconds == 0.0 {
            return Err(format!("fio did {operations} of {} operations in {seconds} s", self.blocks()));
        }
        let latency = |percentile: &str| Some(way["clat_ns"]["percentile"][percentile].as_f64()? / 1e3);
        // Shares are of the time of all processes.
        let shares = number(&group["usr_cpu"])? + number(&group["sys_cpu"])?;
        let programs_seconds = shares / 100.0 * number(&group["job_runtime"])? / 1000.0;
        let latency_us = latency("50.000000").zip(latency("99.000000"));
        Ok(Measured { seconds, operations, bytes, latency_us, programs_seconds: Some(programs_seconds) })
    }
}

/// The figures of all processes together.
fn group(output: &str) -> Outcome<Value> {
    // Warnings may stand above.
    let begin = output.find('{').unwrap_or(0);
    let mut parsed: Value =
        serde_json::from_str(&output[begin..]).context(|| "understand the output of fio")?;
    match parsed["jobs"].as_array().map(Vec::len) {
        Some(1) => Ok(parsed["jobs"][0].take()),
        other => Err(format!("fio reported {other:?} groups of processes in place of one")),
    }
}
