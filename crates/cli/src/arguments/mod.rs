//! The command line, defined once: the parser, every help text, the man pages and the shell completions come
//! from here.

mod aggregate;
mod bench;
mod candidates;
mod job;

pub use aggregate::{
    AggregateAction, AggregateOnly, ArchiveFormat, CatArguments, CompactArguments, Compress, CopyArguments,
    CreateArguments, ExportArguments, ExtractArguments, ListArguments, MountArguments, VerifyArguments,
};
pub use bench::{BenchAction, NetArguments};
pub use job::{DeviceChoice, JobOptions};

use crate::exit;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::engine::ArgValueCandidates;
use std::ffi::OsString;
use std::path::PathBuf;
use tameike_agent::files::FILES_MAX;
use tameike_core::{JobId, Layout};

/// A burst buffer of your job's own nodes: fast file systems that live as long as the job, and a drain that
/// proves your results are on the shared file system.
#[derive(Debug, Parser)]
#[command(
    name = "tameike",
    version,
    long_about = "Tameike pools memory and local disks of a job's own nodes into three file systems (views) that \
    every program can use, and lets the data out to the slow shared file system behind:\n\n  \
    shared      one tree for all nodes of the job, gone with the job ($TAMEIKE_SHARED)\n  \
    node-local  private to each node, gone with the job              ($TAMEIKE_NODE_LOCAL)\n  \
    cache       the tree of a directory of the shared file system:   ($TAMEIKE_CACHE)\n              \
    reads are kept, writes are held and drained, with a receipt\n\n\
    It needs no root, no installation on the nodes beyond this one program, and leaves nothing behind.",
    after_help = "Start here:\n  \
    tameike doctor                        what this machine allows, and how to mend the rest\n  \
    tameike run -- sh -c 'df -h \"$TAMEIKE_SHARED\"'\n  \
    tameike run --local 4 --shared results -- ./workflow.sh",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a command as a job: start, mount, run, drain, prove, tear down
    #[command(after_help = exit::HELP, after_long_help = format!("{}\n\n{}", job::RUN_LONG_HELP, exit::HELP))]
    Run(RunArguments),
    /// Run a command on another node of a job, or on all nodes at once
    Exec(ExecArguments),
    /// Start a job in the background, to be used with `exec` until `down`
    #[command(after_long_help = job::UP_LONG_HELP)]
    Up(UpArguments),
    /// List the views of a running job and how to reach them
    #[command(after_long_help = job::MOUNT_LONG_HELP)]
    Mount(JobChoice),
    /// Show the nodes of running jobs: space, dirty data, memory, who is unreachable
    Status(StatusArguments),
    /// Load files of the shared directory into a job, and see where its programs read from
    #[command(after_long_help = job::CACHE_LONG_HELP)]
    Cache {
        /// What to do.
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Write everything the job holds to the shared file system now, and print the receipt
    Drain(DrainArguments),
    /// Finish the drain of jobs that were cut off, from their journals
    #[command(after_long_help = job::RECOVER_LONG_HELP)]
    Recover(RecoverArguments),
    /// Drain a background job, print the receipt, and end the job
    Down(DrainArguments),
    /// Check what this machine allows; each line says how to mend what is missing
    Doctor(DoctorArguments),
    /// Measure what the nodes of a job can do
    Bench {
        /// What.
        #[command(subcommand)]
        action: BenchAction,
    },
    /// Examine the store of a node that has stopped, say what is wrong in it, and repair what can be repaired
    #[command(after_long_help = job::CHECK_LONG_HELP)]
    Check(CheckArguments),
    /// Show or choose how the files of a directory are laid over the nodes
    Layout {
        /// Show or choose.
        #[command(subcommand)]
        action: LayoutAction,
    },
    /// Keep many files in a few: pack a tree into a container, list it, read it, bring it back, prove it
    Agg {
        /// What to do.
        #[command(subcommand)]
        action: AggregateAction,
    },
    /// Print the completion script for a shell
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// Where to write them; it is made when it is not there.
        directory: PathBuf,
    },
    /// Be a node's agent; started by a driver
    #[command(hide = true)]
    Agent,
    /// Be the driver of a background job; started by `up`
    #[command(hide = true)]
    Supervise,
    /// Enter a node's namespaces and run a command there; started by a driver or `exec`
    #[command(hide = true)]
    Enter(EnterArguments),
    /// Keep variables from standard input for a command that is about to enter a node
    #[command(hide = true)]
    KeepVariables(CommandPlace),
    /// Try to make namespaces and a FUSE mount, say which, and end
    #[command(hide = true)]
    Probe,
}

/// `tameike run`
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The job.
    #[command(flatten)]
    pub job: JobOptions,
    /// Let CMD run on when an agent dies; without this, CMD is ended, as part of its files is out of reach
    #[arg(long)]
    pub keep_going: bool,
    /// Also write the receipt to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Preload a library into CMD and what it starts, by which dynamically linked programs reach the agent without the
    /// kernel
    #[arg(long)]
    pub preload: bool,
    /// Without agents and mounts.
    #[command(flatten)]
    pub aggregate_only: AggregateOnly,
    /// The command, run on node 0, with its arguments; options of `tameike run` stand before it, and `--` may part the two
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `tameike up`
#[derive(Debug, Args)]
pub struct UpArguments {
    /// The job.
    #[command(flatten)]
    pub job: JobOptions,
}

/// Which job a command is about.
#[derive(Clone, Debug, Args)]
pub struct JobChoice {
    /// The job; not needed inside a job, or when only one is running
    #[arg(long, value_name = "NAME", env = "TAMEIKE_JOB", value_parser = job::parse_job,
          add = ArgValueCandidates::new(candidates::job_names))]
    pub job: Option<JobId>,
}

/// `tameike exec`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: the command's; with --all the largest of all nodes'; 71 when a node could not be \
    reached."
)]
pub struct ExecArguments {
    /// Which job.
    #[command(flatten)]
    pub job: JobChoice,
    /// Run on this node (counted from 0)
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "all")]
    pub node: u32,
    /// Run on all nodes at once; each line of output begins with the node's number, as `[K] `
    #[arg(long)]
    pub all: bool,
    /// Directory to run in [default: the current one, which must exist on the node]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Set a variable for the command, or (without =VALUE) pass on the one set here; nodes on this machine get
    /// the whole environment anyway, other hosts what their ssh gives. Pass secrets without =VALUE: process lists show this command line
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = job::parse_variable)]
    pub variables: Vec<(String, OsString)>,
    /// Preload a library into CMD and what it starts, by which dynamically linked programs reach the agent without the
    /// kernel
    #[arg(long)]
    pub preload: bool,
    /// The command with its arguments; options of `tameike exec` stand before it, and `--` may part the two
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `tameike status`
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Which job.
    #[command(flatten)]
    pub job: JobChoice,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Look in DIR, too, for jobs that had --device DIR and another TMPDIR than now
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike cache warm`
#[derive(Debug, Args)]
pub struct WarmArguments {
    /// Which job.
    #[command(flatten)]
    pub job: JobChoice,
    /// Files, and directories with all that is below them: in the shared directory, or in the cache view
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// `tameike cache stat`
#[derive(Debug, Args)]
pub struct StatArguments {
    /// Which job, and how to print.
    #[command(flatten)]
    pub status: StatusArguments,
    /// Show who holds these files: in the cache view, the shared directory, or the shared view
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Show who holds the N files that were asked for most often of nodes that hold them, 256 at most [default: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", conflicts_with = "paths",
          value_parser = clap::value_parser!(u32).range(1..=FILES_MAX as i64))]
    pub files: Option<u32>,
}

/// What to do with what the nodes hold of the shared directory.
#[derive(Debug, Subcommand)]
pub enum CacheAction {
    /// Load files of the shared directory into the job before anybody reads them, each once
    #[command(after_long_help = job::WARM_LONG_HELP)]
    Warm(WarmArguments),
    /// Show, for each node, where its programs have read from; or who holds which files
    #[command(after_long_help = job::CACHE_LONG_HELP)]
    Stat(StatArguments),
}

/// `tameike drain` and `tameike down`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 when every file is on the shared file system, 75 when not, 71 when the \
    job cannot be reached or the receipt cannot be written."
)]
pub struct DrainArguments {
    /// Which job.
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
    /// The job [default: every job of yours that was cut off]
    #[arg(long, value_name = "NAME", value_parser = job::parse_job,
          add = ArgValueCandidates::new(candidates::job_names))]
    pub job: Option<JobId>,
    /// Read every file back from the shared file system and compare
    #[arg(long)]
    pub verify: bool,
    /// Also write the receipt to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Give up what cannot be drained now: remove the job's journals on this host, whatever is in them
    #[arg(long)]
    pub discard: bool,
    /// Write what the journals hold of files that are gone from the shared directory below DIR, which every node must see, and forget it
    #[arg(long, value_name = "DIR", conflicts_with = "discard")]
    pub to: Option<PathBuf>,
    /// Look in DIR, too, for journals of jobs that had --device DIR and another TMPDIR than now, or whose directory is gone
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 when `tameike run` can work here, 71 when something that it needs is missing."
)]
pub struct DoctorArguments {
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Look in DIR, too, for what jobs have left that had --device DIR and another TMPDIR than now
    #[arg(long, value_name = "DIR")]
    pub device: Vec<PathBuf>,
}

/// `tameike check`
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The node's device directory: tameike-UID-JOB-NODE below --device, or below /dev/shm
    pub dir: PathBuf,
    /// Put right what can be put right, and move what is lost into DIR/lost+found; without this, nothing is changed
    #[arg(long)]
    pub repair: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Whether files are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AggregateWord {
    /// They are.
    On,
    /// They are not.
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
    /// Choose the layout of a directory, for the files and directories born in it from now on
    #[command(
        allow_missing_positional = true,
        long_about = "Choose the layout of a directory of the shared view, for the files and directories \
        born in it from now on.\n\n  \
        striped     units of 1 MiB in turn over all nodes that have a device\n  \
        striped:N   the same over N of them\n  \
        local       all of a file on the node that creates it\n  \
        node:K      all of a file on node K\n\n\
        Programs can do the same with the extended attribute `user.tameike.layout`.\n\n\
        With --aggregate, of a directory of the cache view: whether files that are made in it and below from now on \
        are packed in a container (on) or not (off), as long as the job runs. The job must have been started with \
        --aggregate=on or --aggregate=auto, or have found a container. Programs do the same with \
        `user.tameike.aggregate`."
    )]
    Set {
        /// `striped`, `striped:N`, `local` or `node:K`
        #[arg(required_unless_present = "aggregate", conflicts_with = "aggregate")]
        layout: Option<Layout>,
        /// Whether files are packed that are made in a directory of the cache view [without a word: on]
        #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        aggregate: Option<AggregateWord>,
        /// A directory in the shared view; with --aggregate, in the cache view.
        #[arg(required = true)]
        path: PathBuf,
    },
}

/// Where the files of a command in a node lie.
#[derive(Debug, Args)]
pub struct CommandPlace {
    /// The job's directory on this host.
    #[arg(long)]
    pub job_dir: PathBuf,
    /// The node.
    #[arg(long)]
    pub node: u32,
    /// A name for the command, by which the agent can signal it.
    #[arg(long)]
    pub name: String,
}

/// `tameike enter`
#[derive(Debug, Args)]
pub struct EnterArguments {
    /// The command's place.
    #[command(flatten)]
    pub place: CommandPlace,
    /// The directory to run in.
    #[arg(long)]
    pub cwd: Option<PathBuf>,
    /// Whether variables were kept for it.
    #[arg(long)]
    pub variables: bool,
    /// Whether the program is preloaded.
    #[arg(long)]
    pub preload: bool,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests;
