//! The receipt of a drain: the state of each file on the shared file system, with its proof.

use crate::wire::admin::Storm;
use serde::{Deserialize, Serialize};

/// Reason for a failed flush: the file has no name any more.
pub const GONE: &str = "no longer exists: another program removed or renamed it";
/// Reason for a failed flush: another file has its name.
pub const TAKEN: &str = "another file has its name now";

/// Result of the flush of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileOutcome {
    /// Written and fsynced.
    Synced,
    /// Written, fsynced, read back, and equal to the checksum.
    Verified,
    /// Not completely on the shared file system, with the reason. The journal still has the dirty data.
    Missing(String),
    /// A program had the file open for writing when the job was interrupted; the text says how much is there, synced. The
    /// journal has no more of it.
    Interrupted(String),
}

/// One drained file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReceipt {
    /// Path relative to the shared directory, with bytes that are not UTF-8 replaced.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of bytes of it that Tameike wrote.
    pub written: u64,
    /// BLAKE3 of the whole file in hexadecimal (as `b3sum` prints it), if Tameike wrote into every unit of it. Else,
    /// after `units:`, BLAKE3 over (index, digest) of the units that it wrote; after an interrupted flush, of the units
    /// in which the file has data.
    pub checksum: String,
    /// Further information for people; usually empty.
    pub note: String,
    /// Result of the flush.
    pub outcome: FileOutcome,
}

impl FileReceipt {
    /// Returns true if the whole file is on the shared file system.
    pub fn is_complete(&self) -> bool {
        matches!(self.outcome, FileOutcome::Synced | FileOutcome::Verified)
    }

    /// Returns true if the file cannot be flushed because the shared directory no longer has it.
    pub fn is_gone(&self) -> bool {
        matches!(&self.outcome, FileOutcome::Missing(why) if why.contains(GONE) || why.contains(TAKEN))
    }

    /// Returns true if the journal has data of it that the shared file system lacks.
    pub fn is_missing(&self) -> bool {
        matches!(self.outcome, FileOutcome::Missing(_))
    }
}

/// The receipt of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// One entry per file that the job wrote in the cache view, by path.
    pub files: Vec<FileReceipt>,
    /// Errors for which whole agents were not drained; empty after a successful drain.
    pub faults: Vec<String>,
    /// Directories in which nodes created many files within seconds.
    #[serde(default)]
    pub storms: Vec<Storm>,
}

impl Receipt {
    /// Returns true if all files are completely on the shared file system, and all agents replied.
    pub fn is_complete(&self) -> bool {
        self.faults.is_empty() && self.files.iter().all(FileReceipt::is_complete)
    }

    /// Returns true if the shared file system has everything that the journals have, and all agents replied.
    pub fn is_drained(&self) -> bool {
        self.faults.is_empty() && self.missing().next().is_none()
    }

    /// The files of which the journals have data that the shared file system lacks.
    pub fn missing(&self) -> impl Iterator<Item = &FileReceipt> {
        self.files.iter().filter(|file| file.is_missing())
    }

    /// The files that a program had open for writing when the job was interrupted.
    pub fn interrupted(&self) -> impl Iterator<Item = &FileReceipt> {
        self.files.iter().filter(|file| matches!(file.outcome, FileOutcome::Interrupted(_)))
    }

    /// Adds the files of another agent's receipt.
    pub fn merge(&mut self, other: Self) {
        self.files.extend(other.files);
        self.faults.extend(other.faults);
        self.storms.extend(other.storms);
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
    }
}
