//! Index of files by path, so that the rename of a directory costs time proportional to the files below it.
//!
//! A path is a hint: a file is found under it only if its inode number matches. The journal stores the paths of each record as keys beside
//! the record; the files in memory have theirs in a set.

use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use std::collections::BTreeSet;
use tameike_core::{Errno, Fault, InodeId, Result};
use tameike_store::table::prefix;

pub(super) const PATH: u8 = b'p';

/// Returns the path and inode of a key of the journal's path index.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], InodeId)> {
    let (path, number) = key.strip_prefix(&[prefix::CACHE, PATH])?.split_last_chunk::<8>()?;
    Some((path.strip_suffix(&[0])?, InodeId(u64::from_be_bytes(*number))))
}

pub(super) fn key(path: &[u8], inode: InodeId) -> Vec<u8> {
    // A path contains no NUL byte, so the keys of one path are contiguous.
    [&[prefix::CACHE, PATH], path, &[0], &inode.0.to_be_bytes()].concat()
}

/// Bounds (first included, second excluded) of all paths below a directory.
fn below(directory: &[u8]) -> [Vec<u8>; 2] {
    [b'/', b'/' + 1].map(|bound| [directory, &[bound]].concat())
}

/// Bounds of the journal's keys for all paths below a directory.
pub(super) fn keys_below(directory: &[u8]) -> [Vec<u8>; 2] {
    below(directory).map(|bound| [&[prefix::CACHE, PATH], bound.as_slice()].concat())
}

/// Returns the inode number at the end of a key of the journal's path index.
pub(super) fn inode_of(key: &[u8]) -> Result<InodeId> {
    let number = key.last_chunk().copied().map(u64::from_be_bytes);
    number.map(InodeId).ok_or_else(|| Fault::new(Errno::EBADMSG, "a path of a cache record is damaged"))
}

/// Changes of the journal's keys if the paths of a file change from `before` to `after`: a value to put, or none to remove.
pub(super) fn changes(
    inode: InodeId,
    before: &[ByteBuf],
    after: &[ByteBuf],
) -> Vec<(ByteBuf, Option<ByteBuf>)> {
    let gone = before.iter().filter(|path| !after.contains(path)).map(|path| (path, None));
    let new = after.iter().filter(|path| !before.contains(path)).map(|path| (path, Some(ByteBuf::new())));
    gone.chain(new).map(|(path, value)| (ByteBuf::from(key(path, inode)), value)).collect()
}

/// Paths of the files in memory.
#[derive(Default)]
pub(super) struct Paths(Mutex<BTreeSet<(Vec<u8>, InodeId)>>);

impl Paths {
    /// Replaces the paths `before` of a file with `after`.
    pub(super) fn replace(&self, inode: InodeId, before: &[ByteBuf], after: &[ByteBuf]) {
        if before == after {
            return;
        }
        let mut paths = self.0.lock();
        for path in before {
            paths.remove(&(path.to_vec(), inode));
        }
        paths.extend(after.iter().map(|path| (path.to_vec(), inode)));
    }

    /// Returns the files with a path below `directory`.
    pub(super) fn below(&self, directory: &[u8]) -> BTreeSet<InodeId> {
        let [first, end] = below(directory).map(|bound| (bound, InodeId(0)));
        self.0.lock().range(first..end).map(|(_, inode)| *inode).collect()
    }
}
