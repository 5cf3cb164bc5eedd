//! The command line.

use crate::workload::{Sizes, Workload};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Measure file systems side by side, and check every byte.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Options {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure targets side by side, and write a report.
    Run(RunOptions),
    /// Measure how agents disturb a program that computes on a processor.
    Noise(NoiseOptions),
    /// Sample where agents spend their processor time, with `perf`.
    Profile(ProfileOptions),
    /// One process of a run; started by `run`.
    #[command(hide = true)]
    Rank(RankOptions),
    /// The compute process; started by `noise`.
    #[command(hide = true)]
    Quantum(QuantumOptions),
}

impl RunOptions {
    /// The requested workloads; all if none was named.
    pub fn workloads(&self) -> &[Workload] {
        match self.workloads.as_slice() {
            [] => Workload::value_variants(),
            named => named,
        }
    }
}

/// A target that this program sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BuiltIn {
    /// A directory on this machine's disk.
    Disk,
    /// A directory in /dev/shm.
    Tmpfs,
    /// A distributed GlusterFS volume, one brick in /dev/shm and one mount per node (needs root).
    Glusterfs,
    /// MooseFS with one copy, a master, one chunk server in /dev/shm and one mount per node (needs root).
    Moosefs,
    /// The job-shared view of a Tameike job, RAM device, one agent per node.
    Tameike,
    /// As `tameike`, with one agent that all ranks use.
    #[value(name = "tameike-1")]
    TameikeOne,
    /// As `tameike`, with preloaded ranks.
    TameikePreload,
    /// As `tameike-1`, with preloaded ranks.
    #[value(name = "tameike-1-preload")]
    TameikeOnePreload,
    /// The cache view of a Tameike job, RAM device, one agent per node, over a directory in /dev/shm.
    TameikeCache,
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// Targets to measure.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "tmpfs,disk,tameike,tameike-1,tameike-preload,tameike-1-preload,tameike-cache,glusterfs,moosefs"
    )]
    pub targets: Vec<BuiltIn>,
    /// Also measure this directory, under this name. `$VARIABLE` is expanded from the rank's environment, `{node}` and `{rank}`
    /// are replaced by its numbers.
    #[arg(long = "also", value_name = "NAME=DIRECTORY")]
    pub also: Vec<String>,
    /// Start the ranks of target NAME by this command: `NAME=ssh host{node}`.
    #[arg(long = "launcher", value_name = "NAME=COMMAND")]
    pub launchers: Vec<String>,
    /// Run this command before each step in which ranks of target NAME read: `NAME=tameike drain`.
    #[arg(long = "settle", value_name = "NAME=COMMAND")]
    pub settles: Vec<String>,
    /// The target that ratios are relative to [default: tmpfs, or else the first].
    #[arg(long)]
    pub base: Option<String>,
    /// Workloads to run [default: all].
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<Workload>,
    /// Number of ranks (processes that read and write concurrently).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Nodes of targets that have nodes (`tameike-1` always has one); rank r runs on node r modulo this.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Repetitions; the report gives their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Size of each rank's large file, in MiB.
    #[arg(long, default_value_t = Sizes::USUAL.size_bytes >> 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub size_mib: u64,
    /// Empty files and small files per rank.
    #[arg(long, default_value_t = Sizes::USUAL.files, value_parser = clap::value_parser!(u32).range(1..))]
    pub files: u32,
    /// Files of 1 MiB per rank.
    #[arg(long, default_value_t = Sizes::USUAL.large_files, value_parser = clap::value_parser!(u32).range(1..))]
    pub large_files: u32,
    /// Random reads and writes per rank.
    #[arg(long, default_value_t = Sizes::USUAL.operations, value_parser = clap::value_parser!(u32).range(1..))]
    pub operations: u32,
    /// Minimal sizes and one repetition, for tests: the options above are ignored.
    #[arg(long)]
    pub tiny: bool,
    /// Parent of the plain directory on disk.
    #[arg(long, default_value = "/var/tmp")]
    pub disk: PathBuf,
    /// The `tameike` program.
    #[arg(long, default_value = "tameike")]
    pub tameike: PathBuf,
    /// Seed of the written data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time limit of a step, in seconds.
    #[arg(long, default_value_t = 600)]
    pub limit_s: u64,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "run")]
    pub name: String,
    /// Where reports are kept.
    #[arg(long, default_value = "bench/runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct RankOptions {
    /// Address of the coordinator.
    #[arg(long)]
    pub coordinator: SocketAddr,
    /// Number of this rank.
    #[arg(long)]
    pub rank: u32,
    /// Identifies the run to the coordinator.
    #[arg(long)]
    pub token: String,
    /// Directory to read and write; `$VARIABLE` is expanded from this process's environment.
    #[arg(long)]
    pub directory: String,
}

#[derive(Debug, Args)]
pub struct NoiseOptions {
    /// Rounds of a window without a job, one with an idle job and one with a busy job.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Length of a window, in seconds.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Agents of the job, and ranks that use it.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Let agents and ranks run on every processor, including that of the compute process.
    #[arg(long)]
    pub anywhere: bool,
    /// The `tameike` program.
    #[arg(long, default_value = "tameike")]
    pub tameike: PathBuf,
    /// Time limit of a step, in seconds.
    #[arg(long, default_value_t = 600)]
    pub limit_s: u64,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "noise")]
    pub name: String,
    /// Where reports are kept.
    #[arg(long, default_value = "bench/runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct ProfileOptions {
    /// Workloads to run on the job.
    #[arg(long, value_delimiter = ',', default_value = "sequential,interleaved,latency,metadata")]
    pub workloads: Vec<Workload>,
    /// Repeat each workload for this time, in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Number of ranks (processes that read and write concurrently).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Agents of the job.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Preload the ranks.
    #[arg(long)]
    pub preload: bool,
    /// Sample the whole machine, including ranks and idle processors, instead of the agents.
    #[arg(long)]
    pub machine: bool,
    /// The `tameike` program.
    #[arg(long, default_value = "tameike")]
    pub tameike: PathBuf,
    /// Time limit of a step, in seconds.
    #[arg(long, default_value_t = 600)]
    pub limit_s: u64,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "profile")]
    pub name: String,
    /// Where reports are kept.
    #[arg(long, default_value = "bench/runs")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct QuantumOptions {
    /// The processor to compute on.
    #[arg(long)]
    pub processor: usize,
    /// The time to compute, in seconds.
    #[arg(long)]
    pub seconds: f64,
}
