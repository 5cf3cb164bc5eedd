//! Files by path, so that the renaming of a directory costs what is below it.
//!
//! A path is a hint: a file is found under it only when its inode number says so. The journal keeps, beside
//! each record, the paths of the record as keys; the files in memory keep theirs in a set.

use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use std::collections::BTreeSet;
use tameike_core::{Errno, Fault, InodeId, Result};
use tameike_store::table::prefix;

pub(super) const PATH: u8 = b'p';

/// Path and inode of a key of the journal's paths.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], InodeId)> {
    let (path, number) = key.strip_prefix(&[prefix::CACHE, PATH])?.split_last_chunk::<8>()?;
    Some((path.strip_suffix(&[0])?, InodeId(u64::from_be_bytes(*number))))
}

pub(super) fn key(path: &[u8], inode: InodeId) -> Vec<u8> {
    // No path has a NUL: no other path's keys lie between those of one path.
    [&[prefix::CACHE, PATH], path, &[0], &inode.0.to_be_bytes()].concat()
}

/// All paths below a directory lie from the first of these (included) to the second.
fn below(directory: &[u8]) -> [Vec<u8>; 2] {
    [b'/', b'/' + 1].map(|bound| [directory, &[bound]].concat())
}

/// The bounds of the journal's keys of all paths below a directory.
pub(super) fn keys_below(directory: &[u8]) -> [Vec<u8>; 2] {
    below(directory).map(|bound| [&[prefix::CACHE, PATH], bound.as_slice()].concat())
}

/// The inode number at the end of a key of the journal's paths.
///
/// # Errors
/// `EBADMSG` when the key is too short.
pub(super) fn inode_of(key: &[u8]) -> Result<InodeId> {
    let number = key.last_chunk().copied().map(u64::from_be_bytes);
    number.map(InodeId).ok_or_else(|| Fault::new(Errno::EBADMSG, "a path of a cache record is damaged"))
}

/// Changes of the journal's keys when the paths of a file were `before` and are `after`: a value to put, or none to remove.
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
    /// The paths of a file were `before` and are `after`.
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

    /// Files with a path below `directory`.
    pub(super) fn below(&self, directory: &[u8]) -> BTreeSet<InodeId> {
        let [first, end] = below(directory).map(|bound| (bound, InodeId(0)));
        self.0.lock().range(first..end).map(|(_, inode)| *inode).collect()
    }
}
