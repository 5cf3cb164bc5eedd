//! The receipt of a drain: per file what is on the shared file system, and how we know.

use crate::wire::admin::Storm;
use serde::{Deserialize, Serialize};

/// Why a file cannot be flushed that has no name any more.
pub const GONE: &str = "is gone: removed or moved by another program";
/// Why a file cannot be flushed whose name another one has.
pub const TAKEN: &str = "another file has taken its place";

/// How the flush of one file ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileOutcome {
    /// Written and fsynced.
    Synced,
    /// Written, fsynced, read back, and found equal to the checksum.
    Verified,
    /// Not (wholly) on the shared file system; says why. The dirty data is still in the journal.
    Missing(String),
    /// A program had the file open for writing when the job was cut off: says how much of it is there, synced. The journal has no more of it.
    CutOff(String),
}

/// One drained file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReceipt {
    /// Path relative to the shared directory, with bytes that are not UTF-8 replaced.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Bytes of it that Tameike wrote.
    pub written: u64,
    /// BLAKE3 of the whole file in hexadecimal (as `b3sum` prints it) when Tameike wrote into every unit of it;
    /// else, after `units:`, BLAKE3 over (index, digest) of the units that it wrote into. After a flush that was
    /// cut off, units in which the file has data stand for those.
    pub checksum: String,
    /// What a person should know besides; empty in the normal case.
    pub note: String,
    /// How it ended.
    pub outcome: FileOutcome,
}

impl FileReceipt {
    /// Whether the file is on the shared file system, whole.
    pub fn is_complete(&self) -> bool {
        match self.outcome {
            FileOutcome::Synced | FileOutcome::Verified => true,
            FileOutcome::Missing(_) | FileOutcome::CutOff(_) => false,
        }
    }

    /// Whether it cannot be flushed because the shared directory has no such file any more.
    pub fn is_gone(&self) -> bool {
        matches!(&self.outcome, FileOutcome::Missing(why) if why.contains(GONE) || why.contains(TAKEN))
    }

    /// Whether the journal has something of it that the shared file system lacks.
    pub fn is_missing(&self) -> bool {
        matches!(self.outcome, FileOutcome::Missing(_))
    }
}

/// The receipt of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// One entry per file that the job wrote in the cache view, by path.
    pub files: Vec<FileReceipt>,
    /// What kept whole agents from being drained; empty in a good drain.
    pub faults: Vec<String>,
    /// Directories in which each node has made many files fast.
    #[serde(default)]
    pub storms: Vec<Storm>,
}

impl Receipt {
    /// Whether every file is on the shared file system, whole, and every agent answered.
    pub fn is_complete(&self) -> bool {
        self.faults.is_empty() && self.files.iter().all(FileReceipt::is_complete)
    }

    /// Whether the journals have nothing more that the shared file system lacks, and every agent answered.
    pub fn is_drained(&self) -> bool {
        self.faults.is_empty() && self.missing().next().is_none()
    }

    /// The files of which the journals have more than the shared file system.
    pub fn missing(&self) -> impl Iterator<Item = &FileReceipt> {
        self.files.iter().filter(|file| file.is_missing())
    }

    /// The files that a program had open for writing when the job was cut off.
    pub fn cut_off(&self) -> impl Iterator<Item = &FileReceipt> {
        self.files.iter().filter(|file| matches!(file.outcome, FileOutcome::CutOff(_)))
    }

    /// Adds the files of another agent's receipt.
    pub fn merge(&mut self, other: Self) {
        self.files.extend(other.files);
        self.faults.extend(other.faults);
        self.storms.extend(other.storms);
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
    }
}
