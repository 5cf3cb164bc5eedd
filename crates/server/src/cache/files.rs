//! The coordinated files in memory: those in use, and as many others as fit.

use super::paths::Paths;
use super::record::{Journal, Record};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tameike_core::wire::cache::Stamp;
use tameike_core::{Generation, InodeId, NodeId, Result, Timestamp};

/// Files kept in memory without being in use.
const IDLE_FILES_MAX: usize = 64 << 10;

/// A coordinated file.
pub(super) struct File {
    pub(super) inode: InodeId,
    /// Held while the file is flushed or cut.
    pub(super) flush: async_lock::Mutex<()>,
    state: Mutex<State>,
    /// Where its paths are noted, as those of all files in memory.
    paths: Arc<Paths>,
}

/// What changes of a file.
pub(super) struct State {
    pub(super) record: Record,
    /// Counts what makes the file dirty, so that a flush sees what came while it ran.
    pub(super) changes: u64,
    /// Whether a flush is changing the shared file just now.
    pub(super) flushing: bool,
    /// Nodes that have opened the file, and may have it open.
    pub(super) openers: BTreeSet<NodeId>,
    /// The time that made the shared file look changed by others, until it turns out that a client has set it.
    pub(super) suspect: Option<Timestamp>,
    /// When flushes wrote to the shared file of which others are to do the rest.
    written: Option<RangeInclusive<Timestamp>>,
}

impl State {
    /// Takes note of a shared file that was changed by others, as it seems: a client sets a time on it before it
    /// tells us.
    pub(super) fn take_change(&mut self, stamp: Stamp) {
        let record = &mut self.record;
        // A file system may show the time of a write only when all nodes that wrote have closed the file, as Gfarm does.
        if self.written.as_ref().is_some_and(|times| times.contains(&stamp.mtime))
            && stamp.size == record.stamp.size
        {
            record.stamp = stamp;
            return;
        }
        let (known, size) = (record.changed_by_others, record.stamp.size);
        record.take_change(stamp);
        let is_first = record.changed_by_others && !known && stamp.size == size;
        self.suspect = is_first.then_some(stamp.mtime);
    }

    /// A flush that began at this time has written to the shared file until now, and left it as `stamp`.
    pub(super) fn take_part(&mut self, began: Timestamp, now: Timestamp, stamp: Stamp) {
        let first = self.written.take().map_or(began, |times| *times.start());
        self.written = Some(first..=now);
        self.record.stamp = stamp;
    }

    /// A flush has written all, set the time that programs gave the file, and left it as `stamp`.
    pub(super) fn take_whole(&mut self, stamp: Stamp) {
        self.written = None;
        self.record.stamp = stamp;
    }

    /// Takes note of the time that a program has set on the shared file, which is `now` so.
    pub(super) fn take_mtime(&mut self, mtime: Timestamp, now: Option<Stamp>) {
        if self.suspect.take_if(|suspect| *suspect == mtime).is_some() {
            (self.record.changed_by_others, self.record.outdated) = (false, false);
        }
        let record = &mut self.record;
        let overtaken = |now: Stamp| record.has_content_of(&now) && now.mtime != mtime;
        if record.journaled && !record.removed && now.is_some_and(overtaken) {
            record.dirty = true;
        }
        if record.dirty {
            self.changes += 1;
            record.mtime = mtime;
        }
        // The change of time is our own: only a change of size tells of somebody else.
        if let Some(now) = now.filter(|now| now.size == record.stamp.size && now.mtime == mtime) {
            record.stamp = now;
            if !record.dirty {
                record.mtime = mtime;
            }
        }
    }
}

impl File {
    fn new(inode: InodeId, record: Record, paths: Arc<Paths>) -> Arc<Self> {
        paths.replace(inode, &[], &record.paths);
        let state = Mutex::new(State {
            record,
            changes: 0,
            flushing: false,
            openers: BTreeSet::new(),
            suspect: None,
            written: None,
        });
        Arc::new(Self { inode, flush: async_lock::Mutex::new(()), state, paths })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the record, and writes it down when the file has a journal. Nothing changes on an error.
    pub(super) fn update<T>(&self, journal: &Journal, change: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = self.state.lock();
        let before = state.record.clone();
        let result = change(&mut state);
        if state.record.journaled
            && state.record != before
            && let Err(fault) = journal.put(self.inode, before.journaled.then_some(&before), &state.record)
        {
            state.record = before;
            return Err(fault);
        }
        self.paths.replace(self.inode, &before.paths, &state.record.paths);
        Ok(result)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.paths.replace(self.inode, &state.record.paths, &[]);
    }
}

/// The files in memory.
#[derive(Default)]
pub(super) struct Files {
    by_inode: Mutex<BTreeMap<InodeId, Arc<File>>>,
    paths: Arc<Paths>,
}

impl Files {
    /// The file, from memory or from the ledger.
    pub(super) fn get(&self, journal: &Journal, inode: InodeId) -> Result<Option<Arc<File>>> {
        let mut files = self.by_inode.lock();
        if let Some(file) = files.get(&inode) {
            return Ok(Some(file.clone()));
        }
        let Some(record) = journal.get(inode)? else { return Ok(None) };
        Ok(Some(self.insert(&mut files, inode, record)))
    }

    /// The file, made from `record` when it is not known yet.
    pub(super) fn get_or_make(
        &self,
        journal: &Journal,
        inode: InodeId,
        record: impl FnOnce() -> Record,
    ) -> Result<Arc<File>> {
        if let Some(file) = self.get(journal, inode)? {
            return Ok(file);
        }
        let mut files = self.by_inode.lock();
        if let Some(file) = files.get(&inode) {
            return Ok(file.clone());
        }
        Ok(self.insert(&mut files, inode, record()))
    }

    fn insert(&self, files: &mut BTreeMap<InodeId, Arc<File>>, inode: InodeId, record: Record) -> Arc<File> {
        if files.len() >= IDLE_FILES_MAX {
            // Files whose record is in the ledger, as all dirty ones are, come back from there. Of the others only
            // the generation is lost: they get a new one when they are opened next, and are read anew.
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = File::new(inode, record, self.paths.clone());
        files.insert(inode, file.clone());
        file
    }

    /// The files in memory with a path below `directory`.
    pub(super) fn below(&self, directory: &[u8]) -> Vec<Arc<File>> {
        let inodes = self.paths.below(directory);
        let files = self.by_inode.lock();
        inodes.iter().filter_map(|inode| files.get(inode).cloned()).collect()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_inode.lock().len()
    }
}

/// A generation that no content of an earlier life of this agent had.
pub(super) fn fresh_generation(runtime: &tameike_io::Runtime) -> Generation {
    let now = runtime.now();
    Generation(now.seconds.max(0) as u64 * 1_000_000 + u64::from(now.nanoseconds / 1000))
}
