//! The definition of the command line, from which the parser, all help texts, the man pages and the shell completions are
//! made.

mod aggregate;
mod bench;
mod candidates;
mod job;
mod mirror;
mod volume;

pub use aggregate::{
    AggregateAction, AggregateOnly, ArchiveFormat, CatArguments, CompactArguments, Compress, CopyArguments,
    CreateArguments, ExportArguments, ExtractArguments, ListArguments, MountArguments, VerifyArguments,
};
pub use bench::{BenchAction, NetArguments};
pub use job::{DeviceChoice, JobOptions};
pub use mirror::{MirrorArguments, ReceiveArguments};
pub use volume::{
    VolumeAction, VolumeCreateArguments, VolumeGrowArguments, VolumeMountArguments, VolumeRemoveArguments,
    VolumeRestartArguments, VolumeShrinkArguments, VolumeStatusArguments, VolumeUnmountArguments,
};

use crate::exit;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::engine::ArgValueCandidates;
use std::ffi::OsString;
use std::path::PathBuf;
use tameike_agent::files::FILES_MAX;
use tameike_core::{JobId, Layout};

/// A burst buffer on the nodes of your job: fast file systems that live as long as the job, and a drain that proves that
/// your results are on the shared file system.
#[derive(Debug, Parser)]
#[command(
    name = "tameike",
    version,
    long_about = "Tameike pools the memory and local disks of a job's nodes into three file systems (views) that \
    every program can use, and drains results to the slow shared file system behind them:\n\n  \
    shared      one tree for all nodes of the job, removed with it  ($TAMEIKE_SHARED)\n  \
    node-local  private to each node, removed with the job          ($TAMEIKE_NODE_LOCAL)\n  \
    cache       a directory of the shared file system:              ($TAMEIKE_CACHE)\n              \
    reads are cached, writes are buffered and drained, with a receipt\n\n\
    It needs no root and only this one program on the nodes, and leaves nothing behind.",
    after_help = "Start here:\n  \
    tameike doctor                        what this machine supports, and how to fix the rest\n  \
    tameike run -- sh -c 'df -h \"$TAMEIKE_SHARED\"'\n  \
    tameike run --local 4 --shared results -- ./workflow.sh",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Action,
}

/// The subcommands of `tameike`.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a command as a job: start agents, mount views, run, drain, print the receipt, clean up
    #[command(after_help = exit::HELP, after_long_help = format!("{}\n\n{}", job::RUN_LONG_HELP, exit::HELP))]
    Run(RunArguments),
    /// Run a command on another node of a job, or on all nodes at once
    Exec(ExecArguments),
    /// Start a job in the background, for use with `exec` until `down`
    #[command(after_long_help = job::UP_LONG_HELP)]
    Up(UpArguments),
    /// List the views of a running job and how to reach them
    #[command(after_long_help = job::MOUNT_LONG_HELP)]
    Mount(JobChoice),
    /// Show the nodes of running jobs: capacity, dirty data, memory, unreachable nodes
    Status(StatusArguments),
    /// Load files of the shared directory into a job, and show where its programs read from
    #[command(after_long_help = job::CACHE_LONG_HELP)]
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Add nodes to a running job with --replicas: its data spreads over them, and programs go on
    #[command(after_long_help = job::GROW_LONG_HELP)]
    Grow(GrowArguments),
    /// Remove nodes from a running job with --replicas: their data moves to the others first, and an interruption lets them stay
    Shrink(ShrinkArguments),
    /// Restart the agents of nodes of a job with --replicas, one after another, to run a new version of tameike
    #[command(after_long_help = job::RESTART_LONG_HELP)]
    Restart(RestartArguments),
    /// Write everything the job holds to the shared file system now, and print the receipt
    Drain(DrainArguments),
    /// Finish the drain of interrupted jobs from their journals
    #[command(after_long_help = job::RECOVER_LONG_HELP)]
    Recover(RecoverArguments),
    /// Drain a background job, print the receipt, and end the job
    Down(DrainArguments),
    /// Make a directory on another host, or another one here, equal to a directory, as after an incomplete job with --mirror
    #[command(after_long_help = mirror::MIRROR_LONG_HELP)]
    Mirror(MirrorArguments),
    /// Receive a mirror in a directory; started by a driver or `mirror`, over ssh
    #[command(after_long_help = mirror::RECEIVE_LONG_HELP)]
    Receive(ReceiveArguments),
    /// Keep a file system on local disks of several hosts that outlives jobs: create, start, attach, grow, remove volumes
    Volume {
        #[command(subcommand)]
        action: VolumeAction,
    },
    /// Check what this machine supports, and print how to fix what is missing
    Doctor(DoctorArguments),
    /// Measure the network between nodes of a job
    Bench {
        #[command(subcommand)]
        action: BenchAction,
    },
    /// Check the store of a stopped node, or the copies of a running job: report and repair damage
    #[command(after_long_help = job::CHECK_LONG_HELP)]
    Check(CheckArguments),
    /// Show or set how files of a directory are distributed over the nodes
    Layout {
        #[command(subcommand)]
        action: LayoutAction,
    },
    /// Store many files in a few large ones: pack a tree into a container, list, read, extract or verify it
    Agg {
        #[command(subcommand)]
        action: AggregateAction,
    },
    /// Print the completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; created if missing.
        directory: PathBuf,
    },
    /// Run as a node's agent; started by a driver
    #[command(hide = true)]
    Agent,
    /// Run as the driver of a background job or volume; started by `up` or `volume start`
    #[command(hide = true)]
    Supervise,
    /// Enter a node's namespaces and run a command there; started by a driver or `exec`
    #[command(hide = true)]
    Enter(EnterArguments),
    /// Store variables from standard input for a command that is about to enter a node
    #[command(hide = true)]
    KeepVariables(CommandPlace),
    /// Remove the store of a volume's node on this host; started by `volume remove`
    #[command(hide = true)]
    RemoveStore(StorePlace),
    /// Print what the store of a volume's node keeps for drivers; started by a driver
    #[command(hide = true)]
    SurveyStore(StorePlace),
    /// Try to create namespaces and a FUSE mount, report the result, and exit
    #[command(hide = true)]
    Probe,
}

/// `tameike run`
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub job: JobOptions,
    /// Let CMD continue when an agent fails; without this, CMD is terminated, because some of its files are unreachable
    #[arg(long)]
    pub keep_going: bool,
    /// Also write the receipt to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Preload a library into CMD and its children, through which dynamically linked programs reach the agent without the
    /// kernel
    #[arg(long)]
    pub preload: bool,
    #[command(flatten)]
    pub aggregate_only: AggregateOnly,
    /// The command for node 0 with its arguments; options of `tameike run` precede it, and `--` may separate the two
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `tameike up`
#[derive(Debug, Args)]
pub struct UpArguments {
    #[command(flatten)]
    pub job: JobOptions,
}

/// Selects the job of a command.
#[derive(Clone, Debug, Args)]
pub struct JobChoice {
    /// The job; may be omitted inside a job, or if only one is running
    #[arg(long, value_name = "NAME", env = "TAMEIKE_JOB", value_parser = job::parse_job,
          add = ArgValueCandidates::new(candidates::job_names))]
    pub job: Option<JobId>,
}

/// `tameike exec`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: that of the command; with --all, the largest of all nodes; 71 if a node could not be reached."
)]
pub struct ExecArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// Run on this node (counted from 0)
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "all")]
    pub node: u32,
    /// Run on all nodes at once; each line of output begins with the node's number, like `[K] `
    #[arg(long)]
    pub all: bool,
    /// Directory to run in [default: the current one, which must exist on the node]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Set a variable for the command, or without =VALUE pass its current value. Nodes on this machine get the whole environment,
    /// other hosts the environment of ssh. Pass secrets without =VALUE: process lists show this command line
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = job::parse_variable)]
    pub variables: Vec<(String, OsString)>,
    /// Preload a library into CMD and its children, through which dynamically linked programs reach the agent without the
    /// kernel
    #[arg(long)]
    pub preload: bool,
    /// The command with its arguments; options of `tameike exec` precede it, and `--` may separate the two
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `tameike grow`
#[derive(Debug, Args)]
pub struct GrowArguments {
    #[command(flatten)]
    pub job: JobChoice,
    #[command(flatten)]
    pub added: AddedNodes,
}

/// Nodes that a running job or volume gets.
#[derive(Debug, Args)]
#[group(id = "added", required = true, multiple = false)]
pub struct AddedNodes {
    /// Add N nodes on this host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub local: Option<u32>,
    /// Add one node on each of these hosts: a,b,c
    #[arg(long, value_name = "LIST")]
    pub hosts: Option<String>,
    /// Add the nodes of a file, with one host per line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub hostfile: Option<PathBuf>,
}

/// `tameike shrink`
#[derive(Debug, Args)]
pub struct ShrinkArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// The numbers of the nodes: K,L,... Programs that still run there when their data has moved are terminated
    #[arg(long, value_name = "LIST", required = true, value_delimiter = ',')]
    pub nodes: Vec<u32>,
}

/// `tameike restart`
#[derive(Debug, Args)]
pub struct RestartArguments {
    #[command(flatten)]
    pub job: JobChoice,
    #[command(flatten)]
    pub restarted: RestartedNodes,
}

/// Nodes whose agents are restarted.
#[derive(Debug, Args)]
pub struct RestartedNodes {
    /// The numbers of the nodes: K,L,... Programs that a job runs there are terminated
    #[arg(long, value_name = "LIST", required = true, value_delimiter = ',')]
    pub nodes: Vec<u32>,
    /// The program for agents on this host [default: the path of the one that started the job or volume]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub program: Option<PathBuf>,
}

/// `tameike status`
#[derive(Debug, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Also search DIR for jobs that were started with --device DIR and another TMPDIR
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike cache warm`
#[derive(Debug, Args)]
pub struct WarmArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// Files, and directories with everything below them, of the shared directory or the cache view
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// `tameike cache stat`
#[derive(Debug, Args)]
pub struct StatArguments {
    #[command(flatten)]
    pub status: StatusArguments,
    /// Show which nodes cache these files of the cache view, the shared directory or the shared view
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Show which nodes cache the N files with most peer reads, at most 256 [default: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", conflicts_with = "paths",
          value_parser = clap::value_parser!(u32).range(1..=FILES_MAX as i64))]
    pub files: Option<u32>,
}

/// The subcommands of `tameike cache`.
#[derive(Debug, Subcommand)]
pub enum CacheAction {
    /// Load files of the shared directory into the job before programs read them, each byte once
    #[command(after_long_help = job::WARM_LONG_HELP)]
    Warm(WarmArguments),
    /// Show for each node where its programs have read from, or which nodes cache which files
    #[command(after_long_help = job::CACHE_LONG_HELP)]
    Stat(StatArguments),
}

/// `tameike drain` and `tameike down`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if every file is on the shared file system, 75 if not, 71 if the job cannot be reached \
    or the receipt cannot be written."
)]
pub struct DrainArguments {
    #[command(flatten)]
    pub job: JobChoice,
    /// Read every file back from the shared file system and compare
    #[arg(long)]
    pub verify: bool,
    /// Also write the receipt to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
}

/// `tameike recover`
#[derive(Clone, Debug, Args)]
pub struct RecoverArguments {
    /// The job [default: all interrupted jobs of this user]
    #[arg(long, value_name = "NAME", value_parser = job::parse_job,
          add = ArgValueCandidates::new(candidates::job_names))]
    pub job: Option<JobId>,
    /// Read every file back from the shared file system and compare
    #[arg(long)]
    pub verify: bool,
    /// Also write the receipt to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Remove the job's journals on this host, with all data that cannot be drained now
    #[arg(long)]
    pub discard: bool,
    /// Write journaled data of files that are missing in the shared directory below DIR, which all nodes must see, then drop it
    #[arg(long, value_name = "DIR", conflicts_with = "discard")]
    pub to: Option<PathBuf>,
    /// Also search DIR for journals of jobs that had --device DIR and another TMPDIR, or whose directory is missing
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike doctor`
#[derive(Debug, Args)]
#[command(after_help = "Exit code: 0 if `tameike run` works here, 71 if a prerequisite is missing.")]
pub struct DoctorArguments {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Also search DIR for leftovers of jobs that had --device DIR and another TMPDIR
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike check`
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The device directory of a stopped node: tameike-UID-JOB-NODE below --device, or below /dev/shm
    #[arg(required_unless_present = "replicas")]
    pub dir: Option<PathBuf>,
    /// Repair what can be repaired, and move what is lost into DIR/lost+found; without this, nothing is changed
    #[arg(long)]
    pub repair: bool,
    /// Compare the copies of a running job's data (run --replicas), and repair those that are damaged or differ
    #[arg(long, conflicts_with_all = ["dir", "repair"])]
    pub replicas: bool,
    #[command(flatten)]
    pub job: JobChoice,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Values of `tameike layout set --aggregate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AggregateWord {
    /// Pack new files.
    On,
    /// Do not pack new files.
    Off,
}

/// `tameike layout`
#[derive(Debug, Subcommand)]
pub enum LayoutAction {
    /// Print the layout of a file or directory of the shared view
    Get {
        /// A path in the shared view.
        path: PathBuf,
    },
    /// Set the layout of a directory, for files and directories that are created in it later
    #[command(
        allow_missing_positional = true,
        long_about = "Set the layout of a directory of the shared view, for files and directories that are created in \
        it later.\n\n  \
        striped     units of 1 MiB round-robin over all nodes that have a device\n  \
        striped:N   the same over N of them\n  \
        local       the whole file on the node that creates it\n  \
        node:K      the whole file on node K\n\n\
        Programs can set the extended attribute `user.tameike.layout` instead.\n\n\
        With --aggregate, for a directory of the cache view: pack files that are created in it and below it later in a \
        container (on) or not (off), until the job ends. This requires a job with --aggregate=on or --aggregate=auto, or \
        one that has found a container. Programs can set `user.tameike.aggregate` instead."
    )]
    Set {
        /// `striped`, `striped:N`, `local` or `node:K`
        #[arg(required_unless_present = "aggregate", conflicts_with = "aggregate")]
        layout: Option<Layout>,
        /// Pack files that are created in a directory of the cache view [without a value: on]
        #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        aggregate: Option<AggregateWord>,
        /// A directory of the shared view; with --aggregate, of the cache view.
        #[arg(required = true)]
        path: PathBuf,
    },
}

/// Locates the files that the driver or `exec` left for a command on a node.
#[derive(Debug, Args)]
pub struct CommandPlace {
    /// The job's directory on this host.
    #[arg(long)]
    pub job_dir: PathBuf,
    /// The node.
    #[arg(long)]
    pub node: u32,
    /// The name by which the agent can signal the command.
    #[arg(long)]
    pub name: String,
}

/// Locates the store of a volume's node on this host.
#[derive(Debug, Args)]
pub struct StorePlace {
    /// The directory of the store.
    #[arg(long)]
    pub dir: PathBuf,
    /// The number of the volume.
    #[arg(long)]
    pub volume: String,
    /// The node.
    #[arg(long)]
    pub node: u32,
}

impl StorePlace {
    /// The words of a command about the store, for `tameike` on its host.
    pub fn words(&self, action: &str) -> [OsString; 7] {
        let Self { dir, volume, node } = self;
        let node = node.to_string().into();
        [action.into(), "--dir".into(), dir.into(), "--volume".into(), volume.into(), "--node".into(), node]
    }
}

/// `tameike enter`
#[derive(Debug, Args)]
pub struct EnterArguments {
    #[command(flatten)]
    pub place: CommandPlace,
    /// The directory to run in.
    #[arg(long)]
    pub cwd: Option<PathBuf>,
    /// True if `keep-variables` stored variables for it.
    #[arg(long)]
    pub variables: bool,
    /// True to preload the library.
    #[arg(long)]
    pub preload: bool,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests;
