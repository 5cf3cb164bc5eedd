//! Amount of data that is not yet on the shared file system: during a drain, and in journals.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Progress of a drain.
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
    /// Returns the progress since `before`, both counted since the agent's start. Flushed data stays dirty until it is durable; it is
    /// not counted twice until then.
    pub(crate) fn since(self, before: Self) -> Self {
        let bytes_flushed = self.bytes_flushed.saturating_sub(before.bytes_flushed);
        let bytes_left = self.bytes_left.min(before.bytes_left.saturating_sub(bytes_flushed));
        Self { bytes_left, bytes_flushed, ..self }
    }
}

/// Data of an agent or device directory that is not on the shared file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undrained {
    /// Files with dirty data that this node coordinates: one node counts each file, wherever its data is.
    pub files: u64,
    /// Dirty bytes.
    pub bytes: u64,
    /// Files that the journal names: needed as long as another node of the job holds dirty data.
    pub named: u64,
    /// Changes of names of packed files that may not be durable in their container.
    pub names: u64,
    /// Files that a program had open for writing when its node or the job failed, and that no receipt has reported yet.
    pub open: u64,
}

impl AddAssign for Undrained {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.named += other.named;
        self.names += other.names;
        self.open += other.open;
    }
}

impl Undrained {
    /// Returns true if the journal holds nothing that the shared file system lacks or that a receipt must report.
    pub fn is_nothing(self) -> bool {
        (self.files, self.bytes, self.names, self.open) == (0, 0, 0, 0)
    }

    /// Returns true if the directory can be removed; `others`: other nodes of the job hold dirty data.
    pub fn is_needless(self, others: bool) -> bool {
        self.is_nothing() && !(others && self.named > 0)
    }
}
