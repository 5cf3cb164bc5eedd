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

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure the targets alternately, and write a report.
    Run(Box<RunOptions>),
    /// Measure the slowdown of a program that computes beside agents.
    Noise(NoiseOptions),
    /// Measure shared memory regions: single accesses, programs beside MPI and ArgoDSM, and database queries (bench/dsm/README.md).
    Dsm(DsmOptions),
    /// Measure a volume of three hosts beside GlusterFS on the same disks (needs root).
    Volume(Box<VolumeOptions>),
    /// Draw flame graphs of the agents, with `perf`.
    Profile(ProfileOptions),
    /// Print the picture (SVG) of what `tameike bench net --json` measured.
    Picture(PictureOptions),
    /// Run a command beside an XFS file system on a disk of limited speed (needs root).
    SlowServer(SlowServerOptions),
    /// One process of a run, which `run` starts.
    #[command(hide = true)]
    Rank(RankOptions),
    /// The compute process, which `noise` starts.
    #[command(hide = true)]
    Quantum(QuantumOptions),
}

impl RunOptions {
    /// The named workloads; all if none is named.
    pub fn workloads(&self) -> &[Workload] {
        match self.workloads.as_slice() {
            [] => Workload::value_variants(),
            named => named,
        }
    }
}

/// A target that the program sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BuiltIn {
    /// A directory on this machine's disk.
    Disk,
    /// A directory in /dev/shm.
    Tmpfs,
    /// A distributed GlusterFS volume, one brick in /dev/shm and one mount per node (needs root).
    Glusterfs,
    /// The same with each file on two bricks, for an even number of nodes.
    GlusterfsReplicas,
    /// MooseFS with one copy, a master, one chunk server in /dev/shm and one mount per node (needs root).
    Moosefs,
    /// Gfarm with one I/O server and one mount per node (needs root, and runs below `slow-server` only).
    Gfarm,
    /// The job-shared view of a Tameike job, RAM device, one agent per node.
    Tameike,
    /// The same with one agent, which all ranks use.
    #[value(name = "tameike-1")]
    TameikeOne,
    /// As `tameike`, with ranks that are preloaded.
    TameikePreload,
    /// As `tameike-1`, with ranks that are preloaded.
    #[value(name = "tameike-1-preload")]
    TameikeOnePreload,
    /// As `tameike`, with `--replicas 2`.
    TameikeReplicas,
    /// The same, with ranks that are preloaded.
    TameikeReplicasPreload,
    /// The cache view of a Tameike job, RAM device, one agent per node, over a directory in `--shared`.
    TameikeCache,
    /// The same with `--aggregate`: the job packs the files into a container.
    TameikeAggregate,
    /// A directory in `--shared`, with ranks that run in `tameike run --aggregate-only`; one node.
    TameikeAggregateOnly,
    /// A container in `--shared` that ranks open with the container library; only the workload `containers`.
    TameikeLibrary,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// The targets.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "tmpfs,disk,tameike,tameike-1,tameike-preload,tameike-1-preload,tameike-cache,glusterfs,moosefs"
    )]
    pub targets: Vec<BuiltIn>,
    /// Measure DIRECTORY too, as target NAME. A leading `$VARIABLE` is expanded in the rank's environment;
    /// `{node}` and `{rank}` stand for its numbers.
    #[arg(long = "also", value_name = "NAME=DIRECTORY")]
    pub also: Vec<String>,
    /// Start the ranks of the target NAME through this command: `NAME=ssh host{node}`.
    #[arg(long = "launcher", value_name = "NAME=COMMAND")]
    pub launchers: Vec<String>,
    /// Run COMMAND before each step in which ranks of the target NAME read: `NAME=tameike drain`.
    #[arg(long = "settle", value_name = "NAME=COMMAND")]
    pub settles: Vec<String>,
    /// The target that ratios are relative to [default: tmpfs, or the first].
    #[arg(long)]
    pub base: Option<String>,
    /// The workloads [default: all].
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<Workload>,
    /// Number of processes that read and write.
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
    /// Empty files, small files and files of `containers`, of each rank.
    #[arg(long, default_value_t = Sizes::USUAL.files, value_parser = clap::value_parser!(u32).range(1..))]
    pub files: u32,
    /// Files of 1 MiB of each rank.
    #[arg(long, default_value_t = Sizes::USUAL.large_files, value_parser = clap::value_parser!(u32).range(1..))]
    pub large_files: u32,
    /// Size of each file of `containers`, in bytes.
    #[arg(long, default_value_t = Sizes::USUAL.file_bytes)]
    pub file_bytes: usize,
    /// Random reads and writes of each rank.
    #[arg(long, default_value_t = Sizes::USUAL.operations, value_parser = clap::value_parser!(u32).range(1..))]
    pub operations: u32,
    /// Use very small sizes and one repetition, for tests.
    #[arg(long)]
    pub tiny: bool,
    /// Where the plain directory on disk is made.
    #[arg(long, default_value = "/var/tmp")]
    pub disk: PathBuf,
    /// Parent of the shared directories and containers of Tameike: a directory, or a target that stands earlier in `--targets`.
    #[arg(long, default_value = "/dev/shm")]
    pub shared: String,
    /// Where the servers of other file systems keep their data.
    #[arg(long, default_value = "/dev/shm")]
    pub store: PathBuf,
    /// Sync all file systems, and drop the kernel's clean pages and dentries, before each cold read (needs root).
    #[arg(long)]
    pub drop_caches: bool,
    /// The seed of the files' content.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "run")]
    pub name: String,
    #[command(flatten)]
    pub report: ReportOptions,
}

/// Options of all subcommands that write a report.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// The `tameike` program.
    #[arg(long, default_value = "tameike")]
    pub tameike: PathBuf,
    /// Time limit of a step, in seconds.
    #[arg(long, default_value_t = 600)]
    pub limit_s: u64,
    /// Where reports are kept.
    #[arg(long, default_value = "bench/runs")]
    pub out: PathBuf,
}

/// Options of `rank`.
#[derive(Debug, Args)]
pub struct RankOptions {
    /// The address of the coordinator.
    #[arg(long)]
    pub coordinator: SocketAddr,
    /// The number of this rank.
    #[arg(long)]
    pub rank: u32,
    /// A token that shows that this rank is part of the run.
    #[arg(long)]
    pub token: String,
    /// The directory to read and write in; a leading `$VARIABLE` is expanded in this process's environment.
    #[arg(long)]
    pub directory: String,
}

/// Options of `noise`.
#[derive(Debug, Args)]
pub struct NoiseOptions {
    /// Rounds of a window without a job, one with an idle job and one with a busy job.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Length of a window.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Agents of the job, and ranks that use it.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Let agents and ranks run on every processor, including that of the compute process.
    #[arg(long)]
    pub anywhere: bool,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "noise")]
    pub name: String,
    #[command(flatten)]
    pub report: ReportOptions,
}

/// Options of `profile`.
#[derive(Debug, Args)]
pub struct ProfileOptions {
    /// The workloads.
    #[arg(long, value_delimiter = ',', default_value = "sequential,interleaved,latency,metadata")]
    pub workloads: Vec<Workload>,
    /// Repeat each workload for this long.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Number of processes that read and write.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Agents of the job.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Preload the ranks.
    #[arg(long)]
    pub preload: bool,
    /// Sample all processors, idle time included, instead of the agents only.
    #[arg(long)]
    pub machine: bool,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "profile")]
    pub name: String,
    #[command(flatten)]
    pub report: ReportOptions,
}

/// Options of `dsm`.
#[derive(Debug, Args)]
pub struct DsmOptions {
    /// Directory of the reports.
    #[arg(long)]
    pub output: PathBuf,
    /// Repetitions of each measurement.
    #[arg(long, default_value_t = 5)]
    pub repetitions: u32,
    /// Also run the queries, beside a file in this directory of a disk.
    #[arg(long)]
    pub disk: Option<PathBuf>,
}

/// A target of `volume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeTarget {
    /// The XFS file system of the first host's disk.
    Disk,
    /// A GlusterFS volume over the three disks.
    Glusterfs,
    /// A Tameike volume over the three disks.
    Tameike,
}

impl VolumeTarget {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Glusterfs => "glusterfs",
            Self::Tameike => "tameike",
        }
    }
}

/// A workload of `volume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeWorkload {
    /// Files of four processes of fio in blocks of 512 KiB.
    #[value(name = "blocks-512k")]
    LargeBlocks,
    /// The same in blocks of 4 KiB.
    #[value(name = "blocks-4k")]
    SmallBlocks,
    /// One file of one process of fio in blocks of 1 MiB.
    File,
    /// Processes of IOR, with a file each and with one file.
    Ior,
    /// The copies of small files, and of large ones, after a host has lost its store.
    Repair,
}

/// Options of `volume`.
#[derive(Debug, Args)]
pub struct VolumeOptions {
    /// The targets.
    #[arg(long, value_delimiter = ',', default_value = "disk,glusterfs,tameike")]
    pub targets: Vec<VolumeTarget>,
    /// The workloads.
    #[arg(long, value_delimiter = ',', default_value = "blocks-512k,blocks-4k,file,ior")]
    pub workloads: Vec<VolumeWorkload>,
    /// Copies of each file, on different hosts.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub replicas: u32,
    /// Rounds; the report gives their median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Size of each of the four files of fio, in MiB, rounded down to a multiple of 4.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(4..))]
    pub size_mib: u64,
    /// Number of the files of 4 KiB that are created and repaired.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    /// Use very small sizes and one round, for tests.
    #[arg(long)]
    pub tiny: bool,
    /// The program IOR (https://github.com/hpc/ior), built with Open MPI; without it, IOR is not measured.
    #[arg(long)]
    pub ior: Option<PathBuf>,
    /// Numbers of processes of IOR.
    #[arg(long, value_delimiter = ',', default_value = "1,3,10,30")]
    pub processes: Vec<u32>,
    /// Memory of each agent for buffers, in MiB.
    #[arg(long, default_value_t = 128)]
    pub memory_mib: u64,
    /// Size of each host's disk in GiB; its image is a sparse file.
    #[arg(long, default_value_t = 8)]
    pub size_gib: u64,
    /// Where the images of the disks are made.
    #[arg(long, default_value = "/var/tmp")]
    pub image: PathBuf,
    /// The report goes to OUT/DATE-NAME.
    #[arg(long, default_value = "volume")]
    pub name: String,
    #[command(flatten)]
    pub report: ReportOptions,
}

/// Options of `picture`.
#[derive(Debug, Args)]
pub struct PictureOptions {
    /// The file.
    pub json: PathBuf,
}

/// Options of `slow-server`.
#[derive(Debug, Args)]
pub struct SlowServerOptions {
    /// MB/s of the disk, reads and writes each; 0 for no limit.
    #[arg(long, default_value_t = 150)]
    pub rate: u64,
    /// Operations per second of the disk, reads and writes each, as of a disk that seeks; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    pub iops: u64,
    /// Size of the disk in GiB; its image is a sparse file.
    #[arg(long, default_value_t = 32)]
    pub size_gib: u64,
    /// Where the image of the disk is made.
    #[arg(long, default_value = "/var/tmp")]
    pub image: PathBuf,
    /// The command. It runs in mount, network and process namespaces that end with it. `{mount}` stands for the directory of the disk.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options of `quantum`.
#[derive(Debug, Args)]
pub struct QuantumOptions {
    /// The processor to compute on.
    #[arg(long)]
    pub processor: usize,
    /// The time to compute, in seconds.
    #[arg(long)]
    pub seconds: f64,
}
