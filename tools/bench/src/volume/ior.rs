//! Runs of IOR: MPI processes on all hosts of a target write a file each or one file, and then read what the next process wrote.
//!
//! `mpirun` starts the processes on this machine, and each enters the mounts of its host. Messages of MPI stay in shared memory.

use super::hosts::Hosts;
use super::sample::Measured;
use crate::outcome::{Context, Outcome, output_of};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Bytes of a call.
const TRANSFER: u64 = 1 << 20;
/// Arguments: the processes that hold the hosts' namespaces, `--`, and the command. Process r is on host r modulo their number.
const ON_HOST: &str = "#!/bin/sh
set -eu
count=0
for word; do
    [ \"$word\" != -- ] || break
    count=$((count + 1))
done
index=$((OMPI_COMM_WORLD_RANK % count))
eval \"holder=\\${$((index + 1))}\"
shift $((count + 1))
exec nsenter --target \"$holder\" --mount -- \"$@\"
";

/// The file of a summary.
const SUMMARY: &str = "mpi/summary.json";

/// The version of the program that ran last.
pub fn version(hosts: &Hosts) -> Option<String> {
    let text = fs::read_to_string(hosts.path(SUMMARY)).ok()?;
    let summary: Value = serde_json::from_str(&text).ok()?;
    Some(format!("IOR {}", summary["Version"].as_str()?))
}

/// Processes that write and read the same amount each.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub processes: u32,
    /// Whether all have one file.
    pub shared: bool,
    /// Bytes of all processes.
    pub amount: u64,
    /// A number of the content that is written, different for each pass.
    pub pass: u32,
}

/// A pass over the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Write and `fsync`.
    Write,
    /// Read what the next process wrote.
    Read,
    /// Compare every byte, and remove the files; not timed.
    Check,
}

impl Job {
    /// Writes what runs need into the directory of the hosts.
    pub fn prepare(hosts: &Hosts) -> Outcome<()> {
        let script = hosts.path("on-host");
        fs::write(&script, ON_HOST).context(|| "write the script of IOR's processes")?;
        fs::set_permissions(&script, Permissions::from_mode(0o755)).context(|| "permit to run it")
    }

    /// One pass of `program`, with processes on the first `count` hosts.
    pub fn run(
        &self,
        program: &Path,
        hosts: &Hosts,
        count: usize,
        directory: &str,
        pass: Pass,
    ) -> Outcome<Option<Measured>> {
        let summary = hosts.path(SUMMARY);
        let mut command = self.command(hosts, count);
        command.arg(program).args(self.arguments(directory, pass));
        command
            .arg("-O")
            .arg(format!("summaryFile={}", summary.display()))
            .args(["-O", "summaryFormat=JSON"]);
        let said = output_of(&mut command, " (Debian's openmpi-bin)")?;
        if pass == Pass::Check {
            return match said.contains("WARNING") || said.contains("ERROR") {
                true => Err(format!("IOR found wrong data: {said}")),
                false => Ok(None),
            };
        }
        let text = fs::read_to_string(&summary).context(|| "read the summary of IOR")?;
        self.measured(&text, pass).map(Some)
    }

    /// `mpirun` with the script that enters a host, up to the program.
    fn command(&self, hosts: &Hosts, count: usize) -> Command {
        let (memory, processes) = (hosts.text("mpi"), self.processes.to_string());
        let mut command = Command::new("timeout");
        command.args(hosts.limited("mpirun")).args([
            "--oversubscribe",
            "--bind-to",
            "none",
            "-np",
            &processes,
        ]);
        command.args(["--mca", "btl", "vader,self", "--mca", "btl_vader_backing_directory", &memory]);
        command.args([
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
            "--mca",
            "mpi_yield_when_idle",
            "1",
        ]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // IOR takes a process for a node, so that the next process is on another one.
        command.env("IOR_FAKE_NODES", &processes).env("IOR_FAKE_TASK_PER_NODES", "1");
        command.env("TMPDIR", &memory).current_dir(hosts.path("")).arg(hosts.path("on-host"));
        command.args((0..count).map(|host| hosts.holder(host).to_string())).arg("--");
        command
    }

    /// Bytes of each process.
    fn block(&self) -> u64 {
        (self.amount / u64::from(self.processes) / TRANSFER).max(1) * TRANSFER
    }

    fn arguments(&self, directory: &str, pass: Pass) -> Vec<String> {
        let (kind, layout) = if self.shared { ("shared", None) } else { ("own", Some("-F")) };
        let words = match pass {
            Pass::Write => ["-w", "-k", "-e"].as_slice(),
            Pass::Read => ["-r", "-k", "-C"].as_slice(),
            Pass::Check => ["-R", "-C"].as_slice(),
        };
        let mut arguments: Vec<String> = words.iter().chain(&layout).map(|&word| word.to_owned()).collect();
        arguments.extend(["-a", "POSIX", "-t"].map(str::to_owned));
        arguments.extend([TRANSFER.to_string(), "-b".to_owned(), self.block().to_string()]);
        arguments.extend(["-G".to_owned(), self.pass.to_string()]);
        arguments.extend(["-o".to_owned(), format!("{directory}/ior-{kind}")]);
        arguments
    }

    fn measured(&self, summary: &str, pass: Pass) -> Outcome<Measured> {
        let parsed: Value = serde_json::from_str(summary).context(|| "understand the summary of IOR")?;
        let access = if pass == Pass::Write { "write" } else { "read" };
        let results = parsed["tests"][0]["Results"].as_array().map_or(&[][..], Vec::as_slice);
        let result = results.iter().find(|result| result["access"] == access);
        let seconds = result.and_then(|result| result["totalTime"].as_f64());
        let seconds = seconds.filter(|&seconds| seconds > 0.0).ok_or("the summary of IOR lacks a time")?;
        let bytes = (self.block() * u64::from(self.processes)) as f64;
        let operations = bytes / TRANSFER as f64;
        Ok(Measured { seconds, operations, bytes, latency_us: None, programs_seconds: None })
    }
}
