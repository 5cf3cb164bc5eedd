//! Open files that stay open between reads, for sequential readers.
//!
//! Most file systems send an open to their servers, and the clients of some discard their readahead with each open. A kept file is closed
//! before its name is removed: some file systems keep an open file under another name, and its directory cannot be removed then.

use super::{Access, FileStat, SharedFile, SharedFs, anew};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Generation, InodeId, Result};

/// Files that are kept.
const FILES_MAX: usize = 64;
/// Files of which is known that they were forgotten.
const FORGOTTEN_MAX: usize = 64;

/// Files of a tree that nobody reads just now.
#[derive(Default)]
pub struct KeptFiles(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those that came last are at the end.
    files: VecDeque<KeptFile>,
    /// Those that were forgotten last are at the end.
    forgotten: VecDeque<InodeId>,
    /// How often some were.
    count: u64,
}

/// A file that is open for reading.
pub struct KeptFile {
    /// Its number.
    pub inode: InodeId,
    /// Which version of it was read: others may have changed the file before the next one.
    pub generation: Generation,
    /// When it was read last, by a clock that only goes forward.
    pub used: Duration,
    /// It.
    pub file: Arc<dyn SharedFile>,
}

/// When a file was opened, or taken: it is not kept if it was forgotten since.
#[derive(Clone, Copy)]
pub struct Moment(u64);

impl KeptFiles {
    /// This version of a file, for one reader, if it is kept; and the moment to give it back with.
    pub fn take(&self, inode: InodeId, generation: Generation) -> (Option<Arc<dyn SharedFile>>, Moment) {
        let mut state = self.0.lock();
        let found = state.files.iter().rposition(|kept| (kept.inode, kept.generation) == (inode, generation));
        let kept = found.and_then(|at| state.files.remove(at));
        (kept.map(|kept| kept.file), Moment(state.count))
    }

    /// Keeps a file.
    pub fn keep(&self, kept: KeptFile, moment: Moment) {
        let mut state = self.0.lock();
        let since = (state.count - moment.0) as usize;
        if since > state.forgotten.len()
            || state.forgotten.iter().rev().take(since).any(|&gone| gone == kept.inode)
        {
            return;
        }
        state.files.push_back(kept);
        let surplus = if state.files.len() > FILES_MAX { state.files.pop_front() } else { None };
        // Closing it may take its time.
        drop(state);
        drop(surplus);
    }

    /// What is read from now on of a file is read by another open of it.
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

    /// Has the name of a file go, which `look` tells of: it is forgotten before, and who has opened it meanwhile does not keep it.
    pub fn while_going<T>(&self, look: impl FnOnce() -> Result<FileStat>, go: impl FnOnce() -> T) -> T {
        let inode = look().ok().map(|stat| stat.inode_id());
        inode.iter().for_each(|&inode| self.forget(inode));
        let gone = go();
        inode.iter().for_each(|&inode| self.forget(inode));
        gone
    }

    /// Those that were not read since `time` are kept no longer; whether there are others.
    pub fn let_go(&self, time: Duration) -> bool {
        let mut state = self.0.lock();
        let (gone, rest) = std::mem::take(&mut state.files).into_iter().partition(|kept| kept.used < time);
        state.files = rest;
        let has_others = !state.files.is_empty();
        drop(state);
        let _: VecDeque<_> = gone;
        has_others
    }
}

/// A change of a file's content on this machine: when it has ended, the file is forgotten.
pub struct Changing(Arc<dyn SharedFs>, InodeId);

impl Changing {
    /// Of this file.
    pub fn begin(fs: &Arc<dyn SharedFs>, inode: InodeId) -> Self {
        Self(fs.clone(), inode)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some(kept) = self.0.kept() {
            kept.forget(self.1);
        }
    }
}

/// Opens the file at `path` and makes sure that it is still this one.
///
/// # Errors
/// `ESTALE` when another file has taken the name, and what [`SharedFs::open`] says.
pub fn open_same(
    fs: &dyn SharedFs,
    path: &[u8],
    inode: InodeId,
    access: Access,
) -> Result<(Arc<dyn SharedFile>, FileStat)> {
    anew(fs, path, || {
        let file = fs.open(path, access)?;
        // Where files are opened by their paths, another one may be open than is remembered.
        file.look_anew()?;
        let stat = file.stat()?;
        if stat.inode_id() == inode {
            return Ok((file, stat));
        }
        let path = String::from_utf8_lossy(path);
        Err(Fault::new(Errno::ESTALE, format!("open {path}: another file has taken this name")))
    })
}
