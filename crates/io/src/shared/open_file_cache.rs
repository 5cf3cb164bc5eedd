//! A cache of open file descriptors for sequential readers.
//!
//! Most file systems send an open to their servers, and some clients discard their readahead at each open. A kept file is closed
//! before its name is removed: otherwise some file systems keep it under another name (silly rename), and its directory cannot be
//! removed.

use super::{Access, FileStat, SharedFile, SharedFs, retry_revalidated};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Generation, InodeId, Result};

const FILES_MAX: usize = 64;
/// Bound on the remembered invalidations.
const FORGOTTEN_MAX: usize = 64;

/// Open files that no reader uses now.
#[derive(Default)]
pub struct OpenFileCache(Mutex<State>);

#[derive(Default)]
struct State {
    /// Ordered by insertion, the newest last.
    files: VecDeque<CachedFile>,
    /// Invalidated files, the newest last.
    forgotten: VecDeque<InodeId>,
    /// Count of invalidations.
    count: u64,
}

/// A file that is open for reading.
pub struct CachedFile {
    /// The inode number.
    pub inode: InodeId,
    /// The version that was read; other nodes may change the file before the next read.
    pub generation: Generation,
    /// The monotonic time of the last read.
    pub used: Duration,
    /// The open file.
    pub file: Arc<dyn SharedFile>,
}

/// The time of an open or [`OpenFileCache::take`]. A file that was invalidated since is not kept.
#[derive(Clone, Copy)]
pub struct CacheToken(u64);

impl OpenFileCache {
    /// Takes this version of a file for one reader, if it is kept, with the moment for [`OpenFileCache::keep`].
    pub fn take(&self, inode: InodeId, generation: Generation) -> (Option<Arc<dyn SharedFile>>, CacheToken) {
        let mut state = self.0.lock();
        let found = state.files.iter().rposition(|kept| (kept.inode, kept.generation) == (inode, generation));
        let kept = found.and_then(|at| state.files.remove(at));
        (kept.map(|kept| kept.file), CacheToken(state.count))
    }

    /// Keeps a file, unless it was invalidated since `moment`.
    pub fn keep(&self, kept: CachedFile, moment: CacheToken) {
        let mut state = self.0.lock();
        let since = (state.count - moment.0) as usize;
        if since > state.forgotten.len()
            || state.forgotten.iter().rev().take(since).any(|&gone| gone == kept.inode)
        {
            return;
        }
        state.files.push_back(kept);
        let surplus = if state.files.len() > FILES_MAX { state.files.pop_front() } else { None };
        // The close may block.
        drop(state);
        drop(surplus);
    }

    /// Invalidates a file: later readers open it again.
    pub fn forget(&self, inode: InodeId) {
        let mut state = self.0.lock();
        state.count += 1;
        state.forgotten.push_back(inode);
        if state.forgotten.len() > FORGOTTEN_MAX {
            state.forgotten.pop_front();
        }
        let (gone, rest) = std::mem::take(&mut state.files).into_iter().partition(|kept| kept.inode == inode);
        state.files = rest;
        drop(state);
        let _: VecDeque<_> = gone;
    }

    /// Runs `remove`, which removes the name of the file that `stat` returns. The file is invalidated before, and again after, so
    /// that a concurrent open is not kept.
    pub fn invalidate_around<T>(
        &self,
        stat: impl FnOnce() -> Result<FileStat>,
        remove: impl FnOnce() -> T,
    ) -> T {
        let inode = stat().ok().map(|stat| stat.inode_id());
        inode.iter().for_each(|&inode| self.forget(inode));
        let removed = remove();
        inode.iter().for_each(|&inode| self.forget(inode));
        removed
    }

    /// Closes files that were not read since `time`. True if others remain.
    pub fn close_unused(&self, time: Duration) -> bool {
        let mut state = self.0.lock();
        let (gone, rest) = std::mem::take(&mut state.files).into_iter().partition(|kept| kept.used < time);
        state.files = rest;
        let has_others = !state.files.is_empty();
        drop(state);
        let _: VecDeque<_> = gone;
        has_others
    }
}

/// Guard of a change of a file's content on this node. Its drop invalidates the kept file.
pub struct ContentChange(Arc<dyn SharedFs>, InodeId);

impl ContentChange {
    /// Begins a change of this file.
    pub fn begin(fs: &Arc<dyn SharedFs>, inode: InodeId) -> Self {
        Self(fs.clone(), inode)
    }
}

impl Drop for ContentChange {
    fn drop(&mut self) {
        if let Some(kept) = self.0.open_file_cache() {
            kept.forget(self.1);
        }
    }
}

/// Opens the file at `path` and checks that it is still this inode.
///
/// # Errors
/// `ESTALE` if another file has this name now, and the errors of [`SharedFs::open`].
pub fn open_same(
    fs: &dyn SharedFs,
    path: &[u8],
    inode: InodeId,
    access: Access,
) -> Result<(Arc<dyn SharedFile>, FileStat)> {
    retry_revalidated(fs, path, || {
        let file = fs.open(path, access)?;
        // On file systems that open by path, the cached attributes may belong to another file.
        file.revalidate()?;
        let stat = file.stat()?;
        if stat.inode_id() == inode {
            return Ok((file, stat));
        }
        let path = String::from_utf8_lossy(path);
        Err(Fault::new(Errno::ESTALE, format!("open {path}: another file has this name now")))
    })
}
