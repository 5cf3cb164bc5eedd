//! What is measured: workloads of steps, each done by all ranks at once between two barriers.
//!
//! A step measures only its calls to the file system. What is written is made before the clock starts, and
//! what was read is checked after it has stopped; the step fails when one byte is wrong.

mod metadata;
mod random;
mod sequential;
mod small;

#[cfg(test)]
mod tests;

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use crate::pattern::{Content, Pattern};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A sequence of steps on files of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A file per rank, in calls of 1 MiB.
    Sequential,
    /// Blocks of 4 KiB here and there in a file per rank.
    Random,
    /// Empty files in a directory per rank.
    Metadata,
    /// Empty files in one directory for all ranks.
    MetadataShared,
    /// Files of 3,901 bytes in a directory per rank.
    Small,
}

/// What all ranks do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The first rank makes all directories.
    MakeDirectories,
    /// Each rank fills its file; not measured.
    Fill,
    /// Create, write in calls of 1 MiB, fsync, close.
    Write,
    /// Read back what this rank wrote.
    ReadOwn,
    /// Read what the next rank wrote, with nothing of it in this node's kernel.
    ReadOther,
    /// Overwrite random blocks, then fsync.
    RandomWrite,
    /// Read random blocks of the next rank's file.
    RandomRead,
    /// Create empty files.
    Create,
    /// Look at the next rank's files.
    Stat,
    /// Remove this rank's files.
    Unlink,
    /// Create, write and close small files.
    SmallWrite,
    /// Open, read and close the next rank's small files.
    SmallRead,
    /// The first rank removes everything.
    RemoveAll,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Mebibytes a second.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// Operations, or files, a second.
    #[serde(rename = "1/s")]
    OperationsPerSecond,
}

impl Unit {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "1/s",
        }
    }
}

impl Workload {
    /// Its steps, in order.
    pub fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Self::Sequential => &[MakeDirectories, Write, ReadOwn, ReadOther, RemoveAll],
            Self::Random => &[MakeDirectories, Fill, RandomWrite, RandomRead, RemoveAll],
            Self::Metadata | Self::MetadataShared => &[MakeDirectories, Create, Stat, Unlink, RemoveAll],
            Self::Small => &[MakeDirectories, SmallWrite, SmallRead, RemoveAll],
        }
    }

    /// A name for people: what is done, to what.
    pub fn title(self, step: Step) -> &'static str {
        match (step, self) {
            (Step::Write, _) => "write, 1 MiB calls, fsync",
            (Step::ReadOwn, _) => "read own file, 1 MiB calls",
            (Step::ReadOther, _) => "read another rank's file",
            (Step::RandomWrite, _) => "random 4 KiB write, fsync",
            (Step::RandomRead, _) => "random 4 KiB read",
            (Step::Create, Self::MetadataShared) => "create, one directory",
            (Step::Create, _) => "create, own directory",
            (Step::Stat, Self::MetadataShared) => "stat, one directory",
            (Step::Stat, _) => "stat, own directory",
            (Step::Unlink, Self::MetadataShared) => "unlink, one directory",
            (Step::Unlink, _) => "unlink, own directory",
            (Step::SmallWrite, _) => "create and write 3,901 bytes",
            (Step::SmallRead, _) => "read 3,901 bytes",
            (Step::MakeDirectories | Step::Fill | Step::RemoveAll, _) => "not measured",
        }
    }
}

impl Step {
    /// What its rate counts, or `None` for a step that only prepares or cleans.
    pub fn unit(self) -> Option<Unit> {
        match self {
            Self::MakeDirectories | Self::Fill | Self::RemoveAll => None,
            Self::Write | Self::ReadOwn | Self::ReadOther => Some(Unit::MebibytesPerSecond),
            Self::RandomWrite | Self::RandomRead | Self::Create | Self::Stat => {
                Some(Unit::OperationsPerSecond)
            }
            Self::Unlink | Self::SmallWrite | Self::SmallRead => Some(Unit::OperationsPerSecond),
        }
    }
}

/// What every rank of a run is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What to do.
    pub workload: Workload,
    /// How many ranks do it.
    pub ranks: u32,
    /// What the bytes follow from.
    pub seed: u64,
    /// Size of each rank's large file.
    pub size_bytes: u64,
    /// Small or empty files of each rank.
    pub files: u32,
    /// Random reads or writes of each rank.
    pub operations: u32,
    /// The directory of this run, within the target's.
    pub run: String,
}

/// What one rank did in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// In calls to the file system.
    pub seconds: f64,
    /// Files, or calls on a file.
    pub operations: u64,
    /// Read or written.
    pub bytes: u64,
}

/// One rank's place in a run.
#[derive(Debug)]
pub struct Site {
    plan: Plan,
    rank: u32,
    root: PathBuf,
    pattern: Pattern,
}

impl Site {
    /// Rank `rank` of `plan`, in `directory` of the target.
    pub fn new(plan: Plan, rank: u32, directory: &Path) -> Self {
        let root = directory.join(&plan.run);
        let pattern = Pattern::new(plan.seed);
        Self { plan, rank, root, pattern }
    }

    /// Does one step.
    pub fn take(&self, step: Step) -> Outcome<Work> {
        match step {
            Step::MakeDirectories => self.make_directories(),
            Step::Fill | Step::Write => sequential::write(self),
            Step::ReadOwn => sequential::read(self, self.rank),
            Step::ReadOther => sequential::read_cold(self, self.next()),
            Step::RandomWrite => random::write(self),
            Step::RandomRead => random::read(self, self.next()),
            Step::Create => metadata::create(self),
            Step::Stat => metadata::stat(self, self.next()),
            Step::Unlink => metadata::unlink(self),
            Step::SmallWrite => small::write(self),
            Step::SmallRead => small::read(self, self.next()),
            Step::RemoveAll => self.remove_all(),
        }
    }

    /// The rank whose files this one reads.
    fn next(&self) -> u32 {
        (self.rank + 1) % self.plan.ranks
    }

    /// The directory of small files of `rank`.
    fn directory(&self, rank: u32) -> PathBuf {
        match self.plan.workload {
            Workload::MetadataShared => self.root.join("all"),
            _ => self.root.join(format!("rank-{rank}")),
        }
    }

    fn large_file(&self, rank: u32) -> PathBuf {
        self.directory(rank).join("large")
    }

    fn file(&self, rank: u32, index: u32) -> PathBuf {
        self.directory(rank).join(format!("file-{rank}-{index}"))
    }

    /// The bytes of a rank's small file, or of its large one for `None`.
    fn content(&self, rank: u32, index: Option<u32>) -> Content {
        Content { file: (u64::from(rank) << 32) + index.map_or(0, |index| u64::from(index) + 1), version: 0 }
    }

    fn make_directories(&self) -> Outcome<Work> {
        if self.rank == 0 {
            for rank in 0..self.plan.ranks {
                let directory = self.directory(rank);
                std::fs::create_dir_all(&directory).context(|| format!("make {}", directory.display()))?;
            }
        }
        Ok(Work::default())
    }

    fn remove_all(&self) -> Outcome<Work> {
        if self.rank == 0 {
            std::fs::remove_dir_all(&self.root).context(|| format!("remove {}", self.root.display()))?;
        }
        Ok(Work::default())
    }

    /// That `bytes` are what belongs at `offset` of `content`, which `path` holds.
    fn check(&self, path: &Path, content: Content, offset: u64, bytes: &[u8]) -> Outcome<()> {
        match self.pattern.first_wrong(content, offset, bytes) {
            Some(at) => {
                Err(format!("WRONG DATA in {} at byte {at}: the read gave other bytes", path.display()))
            }
            None => Ok(()),
        }
    }
}

/// Runs `calls`, and how long they took.
fn timed<T>(calls: impl FnOnce() -> Outcome<T>) -> Outcome<(f64, T)> {
    let watch = Stopwatch::start();
    let value = calls()?;
    Ok((watch.elapsed().as_secs_f64(), value))
}

fn open(path: &Path) -> Outcome<File> {
    File::open(path).context(|| format!("open {}", path.display()))
}
