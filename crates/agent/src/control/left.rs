//! How much of a job's data is not yet on the shared file system: during a drain, and in its journals.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// How far a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files with dirty data that this node coordinates.
    pub files_left: u64,
    /// Dirty bytes on this node.
    pub bytes_left: u64,
    /// Bytes flushed by this node since the drain began.
    pub bytes_flushed: u64,
}

impl Progress {
    /// How far a drain is that began at `before`, both as counted since the agent started. What is written stays dirty until it is safe:
    /// until then, it is not counted twice.
    pub(crate) fn since(self, before: Self) -> Self {
        let bytes_flushed = self.bytes_flushed.saturating_sub(before.bytes_flushed);
        let bytes_left = self.bytes_left.min(before.bytes_left.saturating_sub(bytes_flushed));
        Self { bytes_left, bytes_flushed, ..self }
    }
}

/// What an agent, or a device directory, holds that is not on the shared file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Files with dirty data that this node coordinates: each file is counted by one node, wherever its data is.
    pub files: u64,
    /// Dirty bytes.
    pub bytes: u64,
    /// Files that the journal names: needed as long as another node of the job holds dirty data.
    pub named: u64,
    /// Changes of names of packed files that may not be safe in their container.
    pub names: u64,
    /// Files that a program had open for writing when its node, or the job, was cut off, and of which nobody has been told.
    pub open: u64,
}

impl AddAssign for Left {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.named += other.named;
        self.names += other.names;
        self.open += other.open;
    }
}

impl Left {
    /// Whether the journal holds nothing that the shared file system lacks or that a person must know.
    pub fn is_nothing(self) -> bool {
        (self.files, self.bytes, self.names, self.open) == (0, 0, 0, 0)
    }

    /// Whether the directory can go, when other nodes of the job hold dirty data (`others`) or do not.
    pub fn is_needless(self, others: bool) -> bool {
        self.is_nothing() && !(others && self.named > 0)
    }
}
