//! Workloads and their steps, with units and titles for reports.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A sequence of steps on a new set of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A file per rank, in calls of 1 MiB.
    Sequential,
    /// The same, read by the next rank alone (IOR's `-F -C -e`).
    Neighbour,
    /// One file, a part of it per rank, in calls of 1 MiB.
    Shared,
    /// One file, interleaved records of 47,008 bytes of all ranks.
    Interleaved,
    /// One process alone, one file, in calls of 16 MiB.
    OneProcess,
    /// The same bytes from four processes, a file each.
    FourProcesses,
    /// Random blocks of 4 KiB of a file per rank.
    Random,
    /// One process that reads blocks of 4 KiB which its node has already.
    Latency,
    /// The same, with that process and all of the target's on one processor.
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
    /// Many small files until they are persisted, then read cold: packed into containers and as plain files.
    Containers,
    /// One file that all ranks read at the same time, cold.
    HotFile,
}

/// What all ranks do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Each rank makes its directory, as ranks do.
    MakeDirectories,
    /// Each rank fills its file; not measured.
    Fill,
    /// Create, write, fsync, close.
    Write,
    /// Read back what this rank wrote.
    ReadOwn,
    /// Read the next rank's file cold: with none of it in this node's page cache.
    ReadOther,
    /// Each rank reads its file, so that its node has it; not measured.
    Warm,
    /// Overwrite random blocks, then fsync.
    RandomWrite,
    /// Read random blocks of the next rank's file cold.
    RandomRead,
    /// Read random blocks that this node's kernel may still have.
    CachedRead,
    /// Create files, write their content in one call, and close them.
    Create,
    /// Stat this rank's files.
    StatOwn,
    /// Stat the next rank's files.
    StatOther,
    /// Open, read whole and close this rank's files.
    OpenOwn,
    /// Open, read whole and close the next rank's files.
    OpenOther,
    /// Read files of all ranks in random order.
    OpenRandom,
    /// All ranks exit and the data is persisted; measured from the begin of the step before.
    Persist,
    /// As `Persist`; not measured.
    Restart,
    /// Remove this rank's files.
    Unlink,
    /// The first rank removes everything.
    RemoveAll,
}

/// What a rate counts. Operations are calls on a file, or files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    #[serde(rename = "1/s")]
    OperationsPerSecond,
}

/// Workloads that a report shows in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    LargeFiles,
    OneProcess,
    Blocks,
    Empty,
    Small,
    Mebibyte,
    Containers,
}

/// Bytes of a small file: less than a page, and no round number.
const SMALL_BYTES: usize = 3901;

impl Unit {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "1/s",
        }
    }
}

impl Group {
    /// A heading for its table.
    pub fn title(self) -> &'static str {
        match self {
            Self::LargeFiles => "Large files",
            Self::OneProcess => "Calls of 16 MiB",
            Self::Blocks => "Blocks of 4 KiB",
            Self::Empty => "Empty files",
            Self::Small => "Files of 3,901 bytes",
            Self::Mebibyte => "Files of 1 MiB",
            Self::Containers => "Packing",
        }
    }
}

impl Workload {
    /// Its steps, in order.
    pub fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Self::Sequential => &[MakeDirectories, Write, ReadOwn, ReadOther, RemoveAll],
            Self::Neighbour | Self::Shared | Self::Interleaved | Self::OneProcess | Self::FourProcesses => {
                &[MakeDirectories, Write, ReadOther, RemoveAll]
            }
            Self::Random => &[MakeDirectories, Fill, RandomWrite, RandomRead, RemoveAll],
            Self::Containers => {
                &[MakeDirectories, Create, Persist, OpenOther, Restart, OpenRandom, Restart, RemoveAll]
            }
            Self::HotFile => &[MakeDirectories, Fill, Restart, ReadOther, RemoveAll],
            // The second pass over the file gives the kernel back what the read before it had dropped.
            Self::Latency | Self::LatencyPinned => {
                &[MakeDirectories, Fill, Warm, RandomRead, Warm, CachedRead, RemoveAll]
            }
            // Workloads of many files.
            _ => &[MakeDirectories, Create, StatOwn, OpenOwn, StatOther, OpenOther, Unlink, RemoveAll],
        }
    }

    /// The number of processes, which is `usual` for most workloads.
    pub fn ranks(self, usual: u32) -> u32 {
        match self {
            Self::OneProcess | Self::Latency | Self::LatencyPinned => 1,
            Self::FourProcesses => 4,
            _ => usual,
        }
    }

    /// Returns true if ranks and servers share one processor.
    pub fn is_pinned(self) -> bool {
        self == Self::LatencyPinned
    }

    /// Returns true if all ranks have their files in one directory.
    pub fn has_one_directory(self) -> bool {
        use Workload::*;
        matches!(self, Shared | Interleaved | MetadataShared | SmallShared | MebibyteShared | HotFile)
    }

    /// Size of each of its many files, where `containers` is that of [`Self::Containers`].
    pub fn file_bytes(self, containers: usize) -> usize {
        match self {
            Self::Containers => containers,
            Self::Small | Self::SmallShared => SMALL_BYTES,
            Self::Mebibyte | Self::MebibyteShared => 1 << 20,
            _ => 0,
        }
    }

    /// The table that it stands in.
    pub fn group(self) -> Group {
        match self {
            Self::Sequential | Self::Neighbour | Self::Shared | Self::Interleaved | Self::HotFile => {
                Group::LargeFiles
            }
            Self::OneProcess | Self::FourProcesses => Group::OneProcess,
            Self::Random | Self::Latency | Self::LatencyPinned => Group::Blocks,
            Self::Metadata | Self::MetadataShared => Group::Empty,
            Self::Small | Self::SmallShared => Group::Small,
            Self::Mebibyte | Self::MebibyteShared => Group::Mebibyte,
            Self::Containers => Group::Containers,
        }
    }

    /// Its title in reports, within its group.
    pub fn title(self, step: Step) -> String {
        let what = match step {
            Step::Write => "write, fsync",
            Step::ReadOwn => "read by its writer",
            Step::ReadOther if self == Self::OneProcess => "read again",
            Step::ReadOther if self == Self::HotFile => "read",
            Step::ReadOther => "read by another rank",
            Step::RandomWrite => "write, fsync",
            Step::RandomRead if self == Self::Random => "read by another rank",
            Step::RandomRead => "read, in the node's cache",
            Step::CachedRead => "read, in the kernel's cache",
            Step::Create if self.file_bytes(1) > 0 => "create and write",
            Step::Create => "create",
            Step::StatOwn => "stat by its creator",
            Step::StatOther => "stat by another rank",
            Step::OpenOwn if self.file_bytes(1) > 0 => "read by its creator",
            Step::OpenOwn => "open and read by its creator",
            Step::OpenOther if self.file_bytes(1) > 0 => "read by another rank",
            Step::OpenOther => "open and read by another rank",
            Step::OpenRandom => "read in random order",
            Step::Persist => "create, write and persist",
            Step::Unlink => "unlink",
            Step::MakeDirectories | Step::Fill | Step::Warm | Step::Restart | Step::RemoveAll => "prepare",
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
            Self::HotFile => "one file, all of it by every rank, 1 MiB calls",
            Self::Metadata | Self::Small | Self::Mebibyte | Self::Containers => "a directory per rank",
            Self::MetadataShared | Self::SmallShared | Self::MebibyteShared => "one directory",
        }
    }
}

impl Step {
    /// Returns true if ranks read files in it.
    pub fn reads(self) -> bool {
        use Step::*;
        matches!(
            self,
            ReadOwn | ReadOther | Warm | RandomRead | CachedRead | OpenOwn | OpenOther | OpenRandom
        )
    }

    /// Returns true if no kernel may hold the bytes that ranks read in it.
    pub fn is_cold(self) -> bool {
        matches!(self, Self::ReadOther | Self::RandomRead | Self::OpenOther | Self::OpenRandom)
    }

    /// Returns true if all ranks exit in it, and others take the steps after it.
    pub fn ends_ranks(self) -> bool {
        matches!(self, Self::Persist | Self::Restart)
    }

    /// What its rate counts, or `None` for a step that only prepares or cleans.
    pub fn unit(self) -> Option<Unit> {
        match self {
            Self::MakeDirectories | Self::Fill | Self::Warm | Self::Restart | Self::RemoveAll => None,
            Self::Write | Self::ReadOwn | Self::ReadOther => Some(Unit::MebibytesPerSecond),
            _ => Some(Unit::OperationsPerSecond),
        }
    }
}
