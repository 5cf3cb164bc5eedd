//! What a node reclaims from the new primary of a home.
//!
//! The opens and locks of programs are in the memory of the primary only. If another node becomes the primary, each node sends what its
//! programs have open and locked there. The new primary serves the home when it has the parts of all nodes that are not excluded.

use crate::ids::{HomeId, InodeId, OpenId};
use crate::wire::cache::Stamp;
use crate::wire::lock::FileLock;
use serde::{Deserialize, Serialize};

/// Largest sum of the sizes of the parts of one [`Reclaim`], as [`Reclaim::weight`] counts them.
pub const RECLAIM_BYTES_MAX: usize = crate::limits::MESSAGE_SIZE_MAX / 2;

/// A file of the cache view that a node has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its number.
    pub inode: InodeId,
    /// Its path below the shared directory.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Its stamp at the open.
    pub stamp: Stamp,
}

/// What programs of the sender have open and locked at homes whose primary has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Homes of which this is the last part.
    pub complete: Vec<HomeId>,
    /// Open inodes of the job-shared view.
    pub opens: Vec<(InodeId, OpenId)>,
    /// Open files of the cache view.
    pub files: Vec<OpenFile>,
    /// Locks of its programs.
    pub locks: Vec<(InodeId, FileLock)>,
}

/// The reply to a [`Reclaim`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Locks that are lost: the sender was excluded, and another node has taken a conflicting lock meanwhile.
    pub lost_locks: Vec<(InodeId, FileLock)>,
}

impl Reclaim {
    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.path.len() + 80).sum();
        3 * self.complete.len() + 20 * self.opens.len() + files + 60 * self.locks.len()
    }

    /// Divides it into messages of at most [`RECLAIM_BYTES_MAX`] each, at least one. The last one has the complete homes.
    pub fn into_parts(self) -> Vec<Self> {
        let (mut parts, mut part, mut weight) = (Vec::new(), Self::default(), 0);
        let opens = self.opens.into_iter().map(|open| Self { opens: vec![open], ..Self::default() });
        let files = self.files.into_iter().map(|file| Self { files: vec![file], ..Self::default() });
        let locks = self.locks.into_iter().map(|lock| Self { locks: vec![lock], ..Self::default() });
        let complete = Self { complete: self.complete, ..Self::default() };
        for one in opens.chain(files).chain(locks).chain([complete]) {
            if weight + one.weight() > RECLAIM_BYTES_MAX {
                parts.push(std::mem::take(&mut part));
                weight = 0;
            }
            weight += one.weight();
            part.complete.extend(one.complete);
            part.opens.extend(one.opens);
            part.files.extend(one.files);
            part.locks.extend(one.locks);
        }
        parts.push(part);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::ids::NodeId;
    use crate::wire::codec;
    use crate::wire::lock::{LockKind, LockOwner, LockRange};

    fn reclaim(count: u64) -> Reclaim {
        let time = Timestamp { seconds: i64::MIN, nanoseconds: 999_999_999 };
        let stamp = Stamp { device: u64::MAX, inode: u64::MAX, size: u64::MAX, mtime: time, ctime: time };
        let file = |number| OpenFile { inode: InodeId(u64::MAX - number), path: vec![b'x'; 900], stamp };
        let owner = LockOwner { node: NodeId(u32::MAX), number: u64::MAX };
        let kind = LockKind::Exclusive;
        let lock =
            FileLock { owner, range: LockRange { start: u64::MAX, last: u64::MAX }, kind, pid: u32::MAX };
        Reclaim {
            complete: vec![HomeId(u16::MAX); 1000],
            opens: (0..count).map(|number| (InodeId(u64::MAX), OpenId(u64::MAX - number))).collect(),
            files: (0..count).map(file).collect(),
            locks: (0..count).map(|number| (InodeId(u64::MAX - number), lock)).collect(),
        }
    }

    #[test]
    fn parts_fit_messages_and_have_all_once() {
        for count in [0, 1, 10_000] {
            let whole = reclaim(count);
            let parts = whole.clone().into_parts();
            assert_eq!(parts.len() > 1, count > 1000);
            let mut all = Reclaim::default();
            for (number, part) in parts.iter().enumerate() {
                let bytes = codec::encode(part).expect("it fits a message");
                // The lengths of the lists take a few bytes more.
                assert!(bytes.len() <= part.weight() + 16 && part.weight() <= RECLAIM_BYTES_MAX);
                assert!(number + 1 == parts.len() || part.complete.is_empty());
                all.complete.extend(&part.complete);
                all.opens.extend(&part.opens);
                all.files.extend(part.files.iter().cloned());
                all.locks.extend(&part.locks);
            }
            assert_eq!(all, whole);
        }
        assert_eq!(Reclaim::default().into_parts(), [Reclaim::default()]);
    }
}
