//! The ends of shared files up to which this node has flushed.
//!
//! A mount may show a stale size that is too small, as if the bytes behind it did not exist. Bytes that this node has flushed and synced
//! must exist.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use tameike_core::{InodeId, Timestamp};

/// Files with a known end. Beyond this the oldest are dropped.
const FILES_MAX: usize = 1 << 16;

/// No mount shows a stale size for longer than this many seconds: after it the file was truncated, whatever the clocks of hosts say.
const REMEMBERED_SECONDS: i64 = 60;

/// A lower bound of a file's size, and when that was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlushedEnd {
    pub(super) end: u64,
    pub(super) synced: Timestamp,
}

impl FlushedEnd {
    /// Whether the file was truncated, if it is shorter `now` and was last changed then.
    pub(super) fn is_truncated(&self, changed: Timestamp, now: Timestamp) -> bool {
        changed > self.synced || now.seconds > self.synced.seconds + REMEMBERED_SECONDS
    }
}

#[derive(Default)]
struct Known {
    by_inode: BTreeMap<InodeId, FlushedEnd>,
    /// In the order of insertion; entries of files that were dropped since remain.
    order: VecDeque<InodeId>,
}

/// The ends of all files.
#[derive(Default)]
pub(super) struct FlushedEnds(Mutex<Known>);

impl FlushedEnds {
    /// Records that bytes up to `end` were synced.
    pub(super) fn raise(&self, inode: InodeId, end: u64, synced: Timestamp) {
        let mut known = self.0.lock();
        match known.by_inode.get_mut(&inode) {
            Some(before) => *before = FlushedEnd { end: end.max(before.end), synced },
            None => {
                known.by_inode.insert(inode, FlushedEnd { end, synced });
                known.order.push_back(inode);
            }
        }
        while known.order.len() > FILES_MAX {
            let Some(oldest) = known.order.pop_front() else { return };
            known.by_inode.remove(&oldest);
        }
    }

    /// Records a truncate to this size, or with 0 a removal.
    pub(super) fn lower(&self, inode: InodeId, size: u64) {
        let mut known = self.0.lock();
        if size == 0 {
            known.by_inode.remove(&inode);
        } else if let Some(before) = known.by_inode.get_mut(&inode) {
            before.end = before.end.min(size);
        }
    }

    pub(super) fn of(&self, inode: InodeId) -> Option<FlushedEnd> {
        self.0.lock().by_inode.get(&inode).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeId = InodeId(7);

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    #[test]
    fn the_end_follows_flushes_and_truncates() {
        let ends = FlushedEnds::default();
        ends.lower(INODE, 5);
        assert_eq!(ends.of(INODE), None);
        ends.raise(INODE, 100, at(1));
        ends.raise(INODE, 50, at(2));
        assert_eq!(ends.of(INODE), Some(FlushedEnd { end: 100, synced: at(2) }));
        ends.lower(INODE, 200);
        ends.lower(INODE, 30);
        assert_eq!(ends.of(INODE), Some(FlushedEnd { end: 30, synced: at(2) }));
        ends.lower(INODE, 0);
        assert_eq!(ends.of(INODE), None);
    }

    #[test]
    fn the_number_of_known_files_is_bounded() {
        let ends = FlushedEnds::default();
        for number in 0..FILES_MAX as u64 + 10 {
            ends.raise(InodeId(number), 1, at(1));
        }
        let known = ends.0.lock();
        assert_eq!((known.by_inode.len(), known.order.len()), (FILES_MAX, FILES_MAX));
        assert!(!known.by_inode.contains_key(&InodeId(9)) && known.by_inode.contains_key(&InodeId(10)));
    }
}
