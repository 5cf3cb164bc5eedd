//! Workloads and their steps: names, units, and titles in reports.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A sequence of steps on separate files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A file per rank, in calls of 1 MiB.
    Sequential,
    /// As `sequential`, read only by the next rank (IOR's `-F -C -e`).
    Neighbour,
    /// One file with a part per rank, in calls of 1 MiB.
    Shared,
    /// One file with interleaved records of 47,008 bytes of all ranks.
    Interleaved,
    /// A single process with one file, in calls of 16 MiB.
    OneProcess,
    /// The same bytes from four processes with a file each.
    FourProcesses,
    /// Random blocks of 4 KiB in a file per rank.
    Random,
    /// A single process that reads blocks of 4 KiB cached by its node.
    Latency,
    /// As `latency`, with that process and those of the target on one processor.
    LatencyPinned,
    /// Empty files in a directory per rank.
    Metadata,
    /// Empty files in one directory for all ranks.
    MetadataShared,
    /// Files of 3,901 bytes in a directory per rank.
    Small,
    /// Files of 3,901 bytes in one directory for all ranks.
    SmallShared,
    /// Files of 1 MiB in a directory per rank.
    Mebibyte,
    /// Files of 1 MiB in one directory for all ranks.
    MebibyteShared,
}

/// An operation of all ranks between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Each rank creates its directory.
    MakeDirectories,
    /// Each rank fills its file; not measured.
    Fill,
    /// Create, write, fsync, close.
    Write,
    /// Read the data that this rank wrote.
    ReadOwn,
    /// Read the data that the next rank wrote, without cached pages in this node's kernel.
    ReadOther,
    /// Each rank reads its file, so that its node caches it; not measured.
    Warm,
    /// Overwrite random blocks, then fsync.
    RandomWrite,
    /// Read random blocks of the next rank's file, without cached pages in this node's kernel.
    RandomRead,
    /// Read random blocks that this node's kernel may have cached.
    CachedRead,
    /// Create files, write their content in one call, and close them.
    Create,
    /// Stat this rank's files.
    StatOwn,
    /// Stat the next rank's files.
    StatOther,
    /// Open, read and close this rank's files.
    OpenOwn,
    /// Open, read and close the next rank's files.
    OpenOther,
    /// Remove this rank's files.
    Unlink,
    /// The first rank removes everything.
    RemoveAll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    #[serde(rename = "1/s")]
    OperationsPerSecond,
}

/// Workloads that share a table in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Many bytes in large calls.
    LargeFiles,
    /// The same bytes from one process and from four.
    OneProcess,
    Blocks,
    /// Files of 0 bytes.
    Empty,
    Small,
    Mebibyte,
}

/// Bytes of a small file: less than a page, and odd.
const SMALL_BYTES: usize = 3901;

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "1/s",
        }
    }
}

impl Group {
    /// The heading of its table.
    pub fn title(self) -> &'static str {
        match self {
            Self::LargeFiles => "Large files",
            Self::OneProcess => "Calls of 16 MiB",
            Self::Blocks => "Blocks of 4 KiB",
            Self::Empty => "Empty files",
            Self::Small => "Files of 3,901 bytes",
            Self::Mebibyte => "Files of 1 MiB",
        }
    }
}

impl Workload {
    pub fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Self::Sequential => &[MakeDirectories, Write, ReadOwn, ReadOther, RemoveAll],
            Self::Neighbour | Self::Shared | Self::Interleaved | Self::OneProcess | Self::FourProcesses => {
                &[MakeDirectories, Write, ReadOther, RemoveAll]
            }
            Self::Random => &[MakeDirectories, Fill, RandomWrite, RandomRead, RemoveAll],
            // The second `Warm` restores the pages that `RandomRead` has dropped.
            Self::Latency | Self::LatencyPinned => {
                &[MakeDirectories, Fill, Warm, RandomRead, Warm, CachedRead, RemoveAll]
            }
            Self::Metadata
            | Self::MetadataShared
            | Self::Small
            | Self::SmallShared
            | Self::Mebibyte
            | Self::MebibyteShared => {
                &[MakeDirectories, Create, StatOwn, OpenOwn, StatOther, OpenOther, Unlink, RemoveAll]
            }
        }
    }

    /// The number of processes, where `usual` is the requested one.
    pub fn ranks(self, usual: u32) -> u32 {
        match self {
            Self::OneProcess | Self::Latency | Self::LatencyPinned => 1,
            Self::FourProcesses => 4,
            _ => usual,
        }
    }

    /// True if ranks and servers share one processor.
    pub fn is_pinned(self) -> bool {
        self == Self::LatencyPinned
    }

    /// True if all ranks have their files in one directory.
    pub fn has_one_directory(self) -> bool {
        use Workload::*;
        matches!(self, Shared | Interleaved | MetadataShared | SmallShared | MebibyteShared)
    }

    /// Size of each of its many files, in bytes.
    pub fn file_bytes(self) -> usize {
        match self {
            Self::Small | Self::SmallShared => SMALL_BYTES,
            Self::Mebibyte | Self::MebibyteShared => 1 << 20,
            _ => 0,
        }
    }

    /// The table of its figures.
    pub fn group(self) -> Group {
        match self {
            Self::Sequential | Self::Neighbour | Self::Shared | Self::Interleaved => Group::LargeFiles,
            Self::OneProcess | Self::FourProcesses => Group::OneProcess,
            Self::Random | Self::Latency | Self::LatencyPinned => Group::Blocks,
            Self::Metadata | Self::MetadataShared => Group::Empty,
            Self::Small | Self::SmallShared => Group::Small,
            Self::Mebibyte | Self::MebibyteShared => Group::Mebibyte,
        }
    }

    /// The title of a step within its group: the setting, and the operation.
    pub fn title(self, step: Step) -> String {
        let what = match step {
            Step::Write => "write, fsync",
            Step::ReadOwn => "read by its writer",
            Step::ReadOther if self == Self::OneProcess => "read again",
            Step::ReadOther => "read by another rank",
            Step::RandomWrite => "write, fsync",
            Step::RandomRead if self == Self::Random => "read by another rank",
            Step::RandomRead => "read, in the node's cache",
            Step::CachedRead => "read, in the kernel's cache",
            Step::Create if self.file_bytes() > 0 => "create and write",
            Step::Create => "create",
            Step::StatOwn => "stat by its creator",
            Step::StatOther => "stat by another rank",
            Step::OpenOwn if self.file_bytes() > 0 => "read by its creator",
            Step::OpenOwn => "open and read by its creator",
            Step::OpenOther if self.file_bytes() > 0 => "read by another rank",
            Step::OpenOther => "open and read by another rank",
            Step::Unlink => "unlink",
            Step::MakeDirectories | Step::Fill | Step::Warm | Step::RemoveAll => "prepare",
        };
        format!("{}: {what}", self.setting())
    }

    fn setting(self) -> &'static str {
        match self {
            Self::Sequential => "a file per rank, 1 MiB calls",
            Self::Neighbour => "a file per rank for the next one, 1 MiB calls",
            Self::Shared => "one file, a part per rank, 1 MiB calls",
            Self::Interleaved => "one file, interleaved records of 47,008 bytes",
            Self::OneProcess => "one process",
            Self::FourProcesses => "four processes",
            Self::Random => "a file per rank",
            Self::Latency => "one process",
            Self::LatencyPinned => "one process, pinned with servers",
            Self::Metadata | Self::Small | Self::Mebibyte => "a directory per rank",
            Self::MetadataShared | Self::SmallShared | Self::MebibyteShared => "one directory",
        }
    }
}

impl Step {
    /// True if ranks read data of files in it.
    pub fn reads(self) -> bool {
        use Step::*;
        matches!(self, ReadOwn | ReadOther | Warm | RandomRead | CachedRead | OpenOwn | OpenOther)
    }

    /// The unit of its rate; `None` for a step that only prepares or cleans up.
    pub fn unit(self) -> Option<Unit> {
        match self {
            Self::MakeDirectories | Self::Fill | Self::Warm | Self::RemoveAll => None,
            Self::Write | Self::ReadOwn | Self::ReadOther => Some(Unit::MebibytesPerSecond),
            Self::RandomWrite | Self::RandomRead | Self::CachedRead => Some(Unit::OperationsPerSecond),
            Self::Create
            | Self::Unlink
            | Self::StatOwn
            | Self::StatOther
            | Self::OpenOwn
            | Self::OpenOther => Some(Unit::OperationsPerSecond),
        }
    }
}
