//! Ends of shared files that this node has flushed.
//!
//! A mount may remember for a while that a file ends earlier than it does: then it has no bytes behind that end, as if they were not
//! there. What this node itself has brought to the shared file system and synced must be there.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use tameike_core::{InodeId, Timestamp};

/// Files of which the end is known; beyond that the oldest are forgotten.
const FILES_MAX: usize = 1 << 16;

/// No mount remembers an end for longer: then the file was cut, whatever the clock says of whoever did so.
const REMEMBERED_SECONDS: i64 = 60;

/// How far a file reaches at least, and when that was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlushedEnd {
    pub(super) end: u64,
    pub(super) synced: Timestamp,
}

impl FlushedEnd {
    /// Whether the file has been cut, if it still ends before, was last changed then, and it is `now`.
    pub(super) fn is_cut(&self, changed: Timestamp, now: Timestamp) -> bool {
        changed > self.synced || now.seconds > self.synced.seconds + REMEMBERED_SECONDS
    }
}

#[derive(Default)]
struct Known {
    by_inode: BTreeMap<InodeId, FlushedEnd>,
    /// In the order in which they came; also those that have gone since.
    order: VecDeque<InodeId>,
}

/// The ends of all files.
#[derive(Default)]
pub(super) struct FlushedEnds(Mutex<Known>);

impl FlushedEnds {
    /// Bytes up to `end` were synced.
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

    /// The file was cut to this size, or is gone.
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
    fn an_end_follows_flushes_and_cuts() {
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
    fn so_many_files_are_known_and_no_more() {
        let ends = FlushedEnds::default();
        for number in 0..FILES_MAX as u64 + 10 {
            ends.raise(InodeId(number), 1, at(1));
        }
        let known = ends.0.lock();
        assert_eq!((known.by_inode.len(), known.order.len()), (FILES_MAX, FILES_MAX));
        assert!(!known.by_inode.contains_key(&InodeId(9)) && known.by_inode.contains_key(&InodeId(10)));
    }
}
