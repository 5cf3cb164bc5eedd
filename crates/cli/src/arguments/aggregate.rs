//! Arguments of `tameike agg`, and of `tameike run --aggregate-only`.

use crate::settings::size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The subcommands of `tameike agg`.
#[derive(Debug, Subcommand)]
pub enum AggregateAction {
    /// Pack a tree of files into a new container
    Create(CreateArguments),
    /// List files of a container
    Ls(ListArguments),
    /// Print files of a container
    Cat(CatArguments),
    /// Copy files and trees from, into and between containers
    Cp(CopyArguments),
    /// Extract files of a container
    Extract(ExtractArguments),
    /// Write the whole container as a tar or zip archive
    Export(ExportArguments),
    /// Read the whole container and report every damaged file
    #[command(
        after_help = "Exit code: 0 if all data is intact, 1 if `--rebuild` has repaired all damage, 4 if something is damaged, 71 if it cannot be read.\n\
        `tameike agg extract` extracts files that are not damaged."
    )]
    Verify(VerifyArguments),
    /// Reclaim the space of replaced and removed files of a container
    #[command(after_help = "No program may write to the container at the same time; readers reopen it.\n\n\
        Exit code: 0 if it is compacted, 71 if not: then the container is unchanged.")]
    Compact(CompactArguments),
    /// Mount a container read-only until it is unmounted
    #[command(
        after_help = "The program exits when the mount is unmounted (`umount`, `fusermount3 -u`) or interrupted (Ctrl-C). Copies of the mount in other mount \
        namespaces do not keep it alive: after a second, access there and to open files fails with ENOTCONN. Files that other processes add to the \
        container later are not visible.\n\n\
        Exit code: 0 if it was unmounted, 71 if it could not be mounted.\n\n\
        Example: tameike agg mount results.tmk /mnt &"
    )]
    Mount(MountArguments),
}

/// Options of `tameike run --aggregate-only`.
#[derive(Debug, Args)]
pub struct AggregateOnly {
    /// Start no agents and mount nothing: files that CMD and its children have below DIR are in a container there. It is created
    /// if DIR is missing or empty. See docs/containers.md
    #[arg(long, value_name = "DIR", help_heading = "Without agents", conflicts_with_all = [
        "nodes", "shared", "capacity", "device", "memory", "fabric", "connections", "replicas", "no_peer_reads", "cores", "no_ring", "job",
        "packed_by_others", "coherent_mmap", "verify", "keep_going", "receipt", "preload",
    ])]
    pub aggregate_only: Option<PathBuf>,
    /// Directory of files until they are packed: memory, or a local disk [default: /dev/shm]
    #[arg(long, value_name = "DIR", help_heading = "Without agents", requires = "aggregate_only")]
    pub spool: Option<PathBuf>,
    /// Compress packed data where that saves at least an eighth
    #[arg(long, value_enum, default_value_t = Compress::None, help_heading = "Without agents", requires = "aggregate_only")]
    pub compress: Compress,
}

/// `tameike agg create`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if everything is in the container, 75 if some files could not be read, 71 if it could not be written."
)]
pub struct CreateArguments {
    /// The directory to pack
    pub source: PathBuf,
    /// The container: a directory that is created
    pub container: PathBuf,
    /// Bytes of a block, a power of two: the stripe size of the file system [default: as the file system reports, at least 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block_size: Option<u64>,
    /// Subfiles of the container: as many as there are storage targets [default: one per writer, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub subfiles: Option<u32>,
    /// Threads that read and write [default: number of cores, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub writers: Option<u32>,
    /// Compress data where that saves at least an eighth
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// Compression of data in a container.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Compress {
    /// No compression
    None,
    /// Zstandard, for data that becomes smaller by at least an eighth
    Zstd,
}

/// `tameike agg compact`
#[derive(Debug, Args)]
pub struct CompactArguments {
    /// The container
    pub container: PathBuf,
    /// Compress data where that saves at least an eighth
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// `tameike agg mount`
#[derive(Debug, Args)]
pub struct MountArguments {
    /// The container
    pub container: PathBuf,
    /// The mount point
    pub at: PathBuf,
}

/// `tameike agg ls`
#[derive(Debug, Args)]
#[command(
    after_help = "Names with control characters or invalid UTF-8 are quoted: 'a'$'\\n''b'. On a terminal, all names are that a shell would not take literally."
)]
pub struct ListArguments {
    /// The container
    pub container: PathBuf,
    /// A directory or file in it [default: all of it]
    pub path: Option<PathBuf>,
    /// Also show type, permissions, owner, size, time and the targets of symbolic links
    #[arg(short, long)]
    pub long: bool,
    /// Also list the content of directories
    #[arg(short, long)]
    pub recursive: bool,
    /// End each line with NUL instead of a newline, and do not quote names
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
    after_help = "CONTAINER:PATH is a path in a container, CONTAINER: is its root. If the part before a colon is not a container, the colon is part of a file name.\n\n\
    Existing files are not replaced; existing directories receive new files. Times and links are preserved. Owners are preserved in containers, and by root. \
    Containers receive all permissions and extended attributes. Files receive permissions less the umask, and `user.` attributes, unless --same-permissions is given.\n\n\
    Exit code: 0 if everything was copied; 75 if not, or if the writer of a container was interrupted; 4 if a container is damaged and files may be missing; 71 if nothing could be copied.\n\n\
    Examples:\n  \
      tameike agg cp results.tmk:run-7/log .\n  \
      tameike agg cp -r run-8 notes.txt results.tmk:\n  \
      tameike agg cp -r results.tmk:run-7 archive.tmk:2026"
)]
pub struct CopyArguments {
    /// The sources: CONTAINER:PATH, or files and directories
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// The target: CONTAINER:PATH, or a path. In a directory, copies keep their names
    pub into: PathBuf,
    /// Copy directories with everything below them
    #[arg(short, long)]
    pub recursive: bool,
    /// Restore all permissions and extended attributes, with set-user-ID bits and access lists, and create devices. Use it only with trusted containers
    #[arg(short = 'p', long, visible_alias = "preserve")]
    pub same_permissions: bool,
    /// Compress data in a container where that saves at least an eighth
    #[arg(long, value_name = "CODEC", value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "zstd")]
    pub compress: Compress,
}

/// `tameike agg extract`
#[derive(Debug, Args)]
#[command(
    after_help = "Existing files are not replaced. Root also restores owners. Files receive permissions less the umask, and `user.` attributes, \
    unless --same-permissions is given.\n\n\
    Exit code: 0 if everything was extracted; 75 if not, or if the writer of the container was interrupted; 4 if the container is damaged and files may be missing; 71 if it cannot be read."
)]
pub struct ExtractArguments {
    /// The container
    pub container: PathBuf,
    /// The target directory, created if missing
    pub into: PathBuf,
    /// Files and directories of the container [default: all of it]
    pub paths: Vec<PathBuf>,
    /// Restore all permissions and extended attributes, with set-user-ID bits and access lists, and create devices. Use it only with trusted containers
    #[arg(short = 'p', long, visible_alias = "preserve")]
    pub same_permissions: bool,
}

/// `tameike agg export`
#[derive(Debug, Args)]
#[command(
    after_help = "Files that are damaged, or that the format cannot represent, are omitted and reported. Times outside the range of zip are replaced by the nearest one, \
    and counted.\n\n\
    Exit code: 0 if everything is in the archive; 75 if not, or if the writer of the container was interrupted; 4 if the container is damaged and files may be missing; 71 if it could not be written.\n\n\
    Example: tameike agg export results.tmk | zstd >results.tar.zst"
)]
pub struct ExportArguments {
    /// The container
    pub container: PathBuf,
    /// The archive to create [default, and for `-`: standard output]
    pub archive: Option<PathBuf>,
    /// Format of the archive [default: zip if its name ends with .zip, else tar]
    #[arg(long, value_enum)]
    pub format: Option<ArchiveFormat>,
}

/// Format of an archive.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ArchiveFormat {
    /// Everything of a container except sockets, with times in nanoseconds
    Tar,
    /// Files, directories and links, with permissions and times in UTC: seconds from 1970 to 2038, even seconds until 2107
    Zip,
}

/// `tameike agg verify`
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The container
    pub container: PathBuf,
    /// Rebuild the index from the records
    #[arg(long)]
    pub rebuild: bool,
}
