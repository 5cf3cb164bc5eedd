//! Identity of a file in the tree below.

use tameike_core::InodeId;
use tameike_io::shared::FileStat;

/// One file of the tree below. The inode number alone does not identify it: file systems give the number of a removed
/// file to the next new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its inode number, which no other file has at the same time.
    pub inode: InodeId,
    /// As [`FileStat::birth`].
    pub birth: u64,
}

impl Identity {
    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { inode: stat.inode_id(), birth: stat.birth }
    }

    /// Whether both are one file, as far as the file system tells files apart.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.inode == other.inode && (self.birth == other.birth || self.birth == 0 || other.birth == 0)
    }
}
