//! Identity of a file in the underlying tree.

use tameike_core::InodeId;
use tameike_io::shared::FileStat;

/// Identity of a file in the underlying tree. The inode number alone is not enough: file systems reuse the number of a removed file for the
/// next new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Inode number, unique among files that exist at the same time.
    pub inode: InodeId,
    /// As [`FileStat::handle_hash`].
    pub handle_hash: u64,
}

impl Identity {
    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { inode: stat.inode_id(), handle_hash: stat.handle_hash }
    }

    /// Returns true if both are one file, as far as the file system can distinguish successive files.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.inode == other.inode
            && (self.handle_hash == other.handle_hash || self.handle_hash == 0 || other.handle_hash == 0)
    }
}
