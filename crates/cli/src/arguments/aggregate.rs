//! What `tameike agg` takes.

use crate::settings::size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to do with a container.
#[derive(Debug, Subcommand)]
pub enum AggregateAction {
    /// Pack a tree of files into a new container
    Create(CreateArguments),
    /// List what is in a container
    Ls(ListArguments),
    /// Print files of a container
    Cat(CatArguments),
    /// Copy files and trees out of containers, into one, or from one to another
    Cp(CopyArguments),
    /// Bring files of a container back
    Extract(ExtractArguments),
    /// Write all of a container as a tar or zip archive
    Export(ExportArguments),
    /// Read all of a container, and name every file that is damaged
    #[command(
        after_help = "Exit code: 0 when all is as it was written, 1 when `--rebuild` has repaired all that was damaged, 4 when something is damaged, 71 when it cannot be read.\n\
        What is not damaged can be brought back with `tameike agg extract`."
    )]
    Verify(VerifyArguments),
    /// Take back the space of what was replaced or removed in a container
    #[command(
        after_help = "Nobody must write to the container meanwhile; programs that read it open it again.\n\n\
        Exit code: 0 when it is done, 71 when it is not: then the container has all that it had."
    )]
    Compact(CompactArguments),
    /// Show a container as files that cannot be changed, until it is unmounted
    #[command(
        after_help = "It ends when it is unmounted (`umount`, `fusermount3 -u`) or interrupted (Ctrl-C). Mount namespaces that were made meanwhile do not keep it: \
        after a second, files there, and files that are open still, give ENOTCONN. What others add to the container meanwhile is not shown.\n\n\
        Exit code: 0 when it was unmounted, 71 when it could not be mounted.\n\n\
        Example: tameike agg mount results.tmk /mnt &"
    )]
    Mount(MountArguments),
}

/// What of `tameike run` is about a container.
#[derive(Debug, Args)]
pub struct AggregateOnly {
    /// Start no agents and mount nothing: the files that CMD, and what it starts, have below DIR are in a container there, which is
    /// made where DIR is missing or empty. See docs/containers.md
    #[arg(long, value_name = "DIR", help_heading = "Without agents", conflicts_with_all = [
        "nodes", "shared", "capacity", "device", "memory", "fabric", "connections", "no_holders", "cores", "no_ring", "job",
        "packed_by_others", "coherent_mmap", "verify", "keep_going", "receipt", "preload",
    ])]
    pub aggregate_only: Option<PathBuf>,
    /// Where files are until they are packed: memory, or a local disk [default: /dev/shm]
    #[arg(long, value_name = "DIR", help_heading = "Without agents", requires = "aggregate_only")]
    pub spool: Option<PathBuf>,
    /// Make what is packed smaller, where that saves an eighth
    #[arg(long, value_enum, default_value_t = Compress::None, help_heading = "Without agents", requires = "aggregate_only")]
    pub compress: Compress,
}

/// `tameike agg create`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 when everything is in the container, 75 when some files could not be read, 71 when it could not be written."
)]
pub struct CreateArguments {
    /// The directory whose content is packed
    pub source: PathBuf,
    /// The container: a directory that is made
    pub container: PathBuf,
    /// Bytes of a block, a power of two: the stripe of the file system [default: what the file system tells, 4MiB at least]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block_size: Option<u64>,
    /// Files that the container consists of: as many as there are storage targets [default: one for each writer, 8 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub subfiles: Option<u32>,
    /// Threads that read and write [default: as many as there are cores, 16 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub writers: Option<u32>,
    /// Keep data smaller than it is, where that pays
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// How data is kept.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Compress {
    /// As it is
    None,
    /// By Zstandard; what does not become smaller by an eighth is kept as it is
    Zstd,
}

/// `tameike agg compact`
#[derive(Debug, Args)]
pub struct CompactArguments {
    /// The container
    pub container: PathBuf,
    /// Keep data smaller than it is, where that pays
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// `tameike agg mount`
#[derive(Debug, Args)]
pub struct MountArguments {
    /// The container
    pub container: PathBuf,
    /// The directory at which it is shown
    pub at: PathBuf,
}

/// `tameike agg ls`
#[derive(Debug, Args)]
#[command(
    after_help = "Names with control characters, or bytes that are not UTF-8, are written in quotes: 'a'$'\\n''b'. On a terminal all are that a shell would not take as they are."
)]
pub struct ListArguments {
    /// The container
    pub container: PathBuf,
    /// A directory or file in it [default: all of it]
    pub path: Option<PathBuf>,
    /// Kind, permissions, owner, size and time, too, and the targets of symbolic links
    #[arg(short, long)]
    pub long: bool,
    /// What lies in directories, too
    #[arg(short, long)]
    pub recursive: bool,
    /// End each line with a NUL in place of a newline, and write names as they are
    #[arg(short = '0', long)]
    pub null: bool,
}

/// `tameike agg cat`
#[derive(Debug, Args)]
pub struct CatArguments {
    /// The container
    pub container: PathBuf,
    /// Files in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

/// `tameike agg cp`
#[derive(Debug, Args)]
#[command(
    after_help = "CONTAINER:PATH is a path in a container, CONTAINER: all of it. What is before a colon is a container when it is a directory that is one; else the colon is part of a name.\n\n\
    Files that are there already are not replaced, directories that are there get what is new. Times and links are kept, owners in containers, and by root. \
    Containers get all permissions and extended attributes; files get what the umask leaves of their permissions, and attributes of programs (`user.`), unless --same-permissions is given.\n\n\
    Exit code: 0 when everything was copied, 75 when not, or when a container's writer was cut off, 4 when a container is damaged so that files may be missing, 71 when nothing could be.\n\n\
    Examples:\n  \
      tameike agg cp results.tmk:run-7/log .\n  \
      tameike agg cp -r run-8 notes.txt results.tmk:\n  \
      tameike agg cp -r results.tmk:run-7 archive.tmk:2026"
)]
pub struct CopyArguments {
    /// What is copied: CONTAINER:PATH, or files and directories
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// Where it goes: CONTAINER:PATH, or a path. In a directory copies have their own names
    pub into: PathBuf,
    /// Directories, too, with all that is below
    #[arg(short, long)]
    pub recursive: bool,
    /// Files get all permissions and extended attributes, set-user-ID bits and access lists, too, and devices are made. For containers of people you trust
    #[arg(short = 'p', long, visible_alias = "preserve")]
    pub same_permissions: bool,
    /// Keep data smaller in a container than it is, where that pays
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// `tameike agg extract`
#[derive(Debug, Args)]
#[command(
    after_help = "Files that are there already are not replaced. Owners are kept when root extracts. Of permissions files get what the umask leaves, and of \
    extended attributes those of programs (`user.`), unless --same-permissions is given.\n\n\
    Exit code: 0 when everything was brought back, 75 when not, or when the container's writer was cut off, 4 when the container is damaged so that files may be missing, 71 when the container cannot be read."
)]
pub struct ExtractArguments {
    /// The container
    pub container: PathBuf,
    /// Where the files go: a directory, which is made where it is missing
    pub into: PathBuf,
    /// Files and directories of the container [default: all of it]
    pub paths: Vec<PathBuf>,
    /// Files get all permissions and extended attributes, set-user-ID bits and access lists, too, and devices are made. For containers of people you trust
    #[arg(short = 'p', long, visible_alias = "preserve")]
    pub same_permissions: bool,
}

/// `tameike agg export`
#[derive(Debug, Args)]
#[command(
    after_help = "Files that are damaged, or that the archive cannot have, are left out and named. Of files whose times a zip archive cannot have it says how many, \
    and gives them the nearest time.\n\n\
    Exit code: 0 when everything is in the archive, 75 when not, or when the container's writer was cut off, 4 when the container is damaged so that files may be missing, 71 when it could not be written.\n\n\
    Example: tameike agg export results.tmk | zstd >results.tar.zst"
)]
pub struct ExportArguments {
    /// The container
    pub container: PathBuf,
    /// The archive, which is made [default, and when it is `-`: standard output]
    pub archive: Option<PathBuf>,
    /// What it is [default: zip where its name ends so, else tar]
    #[arg(long, value_enum)]
    pub format: Option<ArchiveFormat>,
}

/// What an archive is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ArchiveFormat {
    /// Has all that a container has, with times to the nanosecond, but sockets
    Tar,
    /// Has files, directories and links, with their permissions and times in UTC: seconds from 1970 to 2038, even seconds until 2107
    Zip,
}

/// `tameike agg verify`
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The container
    pub container: PathBuf,
    /// Make a new index of the records that are there
    #[arg(long)]
    pub rebuild: bool,
}
