//! The files of a coordinator: those in use are in memory, and as many others as fit.

use super::change_detection::{OwnWrites, Verdict};
use super::paths::Paths;
use super::record::{Journal, Record};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_core::wire::cache::Stamp;
use tameike_core::{Errno, Fault, Generation, InodeId, MapEpoch, NodeId, Result, Timestamp};

/// Files kept in memory without being in use.
const IDLE_FILES_MAX: usize = 64 << 10;
/// Generations kept of files that have left memory.
const GENERATIONS_MAX: usize = 1 << 18;
/// Files that one insertion examines for eviction, and evicts, at most.
const EXAMINED_MAX: usize = 16;
const EVICTED_MAX: usize = 2;

/// A file of the coordinator.
pub(super) struct File {
    pub(super) inode: InodeId,
    /// Held during a flush, a truncate, or a change of space.
    pub(super) flush: async_lock::Mutex<()>,
    state: Mutex<State>,
    /// Whether a request used it since the last examination for eviction.
    used: AtomicBool,
    /// The paths of all files in memory, its own among them.
    paths: Arc<Paths>,
}

/// The state of a file.
#[derive(Default)]
pub(super) struct State {
    pub(super) record: Record,
    /// Counts changes that make the file dirty, so that a flush notices those that came while it ran.
    pub(super) changes: u64,
    /// Whether a flush is changing the shared file.
    pub(super) flushing: bool,
    /// Nodes that have opened the file, and may still have it open.
    pub(super) openers: BTreeSet<NodeId>,
    /// Whether a node may write to the file after its removal: a node that could not be notified, or that is not known to have it open.
    pub(super) may_be_written_late: bool,
    /// An mtime that looks like a change by another program, until a client reports that it has set it.
    suspect: Option<Timestamp>,
    /// When flushes wrote to the shared file.
    own_writes: Option<OwnWrites>,
}

impl State {
    /// Judges a stamp of the shared file that differs from the record.
    pub(super) fn judge(&self, stamp: &Stamp, now: Timestamp) -> Verdict {
        // A program has set this mtime, and the mount has shown it only now.
        let record = &self.record;
        if record.dirty && (record.stamp.size, record.mtime) == (stamp.size, stamp.mtime) {
            return Verdict::Own;
        }
        self.own_writes.as_ref().map_or(Verdict::Changed, |writes| writes.judge(&self.record, stamp, now))
    }

    /// Records a stamp of the shared file that differs from the record. Since a client sets an mtime on the shared file before it reports
    /// that, an unexpected mtime is a suspect first.
    pub(super) fn observe(&mut self, stamp: Stamp, now: Timestamp) {
        let verdict = self.judge(&stamp, now);
        let record = &mut self.record;
        match verdict {
            Verdict::Stale => {}
            Verdict::Own => {
                record.stamp = stamp;
                record.mtime = if record.dirty { record.mtime } else { stamp.mtime };
            }
            Verdict::Ambiguous => record.invalidate(stamp),
            Verdict::Changed => {
                let (known, size) = (record.changed_by_others, record.stamp.size);
                record.note_change(stamp);
                let is_first = record.changed_by_others && !known && stamp.size == size;
                self.suspect = is_first.then_some(stamp.mtime);
            }
        }
    }

    /// Starts over: another file has the inode number now.
    pub(super) fn restart(&mut self, record: Record) {
        (self.record, self.own_writes, self.suspect) = (record, None, None);
        self.may_be_written_late = false;
    }

    /// Records the creation of the file by a node, which saw it as `stamp`: some file systems change its times once more afterwards.
    pub(super) fn note_creation(&mut self, stamp: &Stamp, now: Timestamp) {
        if self.own_writes.is_none() && self.record.matches_content(stamp) {
            let seconds = |time: Timestamp, more: i64| Timestamp { seconds: time.seconds + more, ..time };
            let (began, ended) = (seconds(stamp.mtime, -1), seconds(stamp.ctime.max(now), 1));
            self.own_writes = Some(OwnWrites::new(None, began, ended, None));
        }
    }

    /// Records a flush that wrote a part of the file and left it as `stamp`.
    pub(super) fn note_partial_flush(&mut self, began: Timestamp, ended: Timestamp, stamp: Stamp) {
        self.own_writes = Some(OwnWrites::new(self.own_writes.take(), began, ended, None));
        self.record.stamp = stamp;
    }

    /// Records a flush that wrote all, set the mtime, and left the file as `stamp`.
    pub(super) fn note_flush(&mut self, began: Timestamp, ended: Timestamp, stamp: Stamp) {
        self.own_writes = Some(OwnWrites::new(self.own_writes.take(), began, ended, Some(stamp)));
        self.record.stamp = stamp;
    }

    /// Records an mtime that a program has set on the shared file, whose stamp is `now`.
    pub(super) fn note_mtime(&mut self, mtime: Timestamp, now: Option<Stamp>) {
        if self.suspect.take_if(|suspect| *suspect == mtime).is_some() {
            (self.record.changed_by_others, self.record.outdated) = (false, false);
        }
        let record = &mut self.record;
        let overtaken = |now: Stamp| record.matches_content(&now) && now.mtime != mtime;
        if record.journaled && !record.removed && now.is_some_and(overtaken) {
            record.dirty = true;
        }
        if record.dirty {
            self.changes += 1;
            record.mtime = mtime;
        }
        // The change of mtime is the job's own: only a change of size shows another program.
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
        let state = Mutex::new(State { record, ..State::default() });
        let (flush, used) = Default::default();
        Arc::new(Self { inode, flush, state, used, paths })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.paths.replace(self.inode, &state.record.paths, &[]);
    }
}

/// Generations of files that are neither in memory nor in the journal, each with the digest of the stamp under which the file was seen. A
/// file that still has that stamp keeps its generation, under which caches have its bytes.
#[derive(Default)]
struct Generations {
    by_inode: BTreeMap<InodeId, (u64, Generation)>,
    /// In the order of insertion; entries of files that have been taken out since remain.
    order: VecDeque<InodeId>,
}

impl Generations {
    fn keep(&mut self, inode: InodeId, record: &Record, most: usize) {
        if record.journaled || record.removed {
            return;
        }
        if self.by_inode.insert(inode, (record.stamp.digest(), record.generation)).is_none() {
            self.order.push_back(inode);
        }
        while self.order.len() > most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.by_inode.remove(&oldest);
        }
    }

    fn forget(&mut self, is_left: impl Fn(InodeId) -> bool) {
        self.by_inode.retain(|inode, _| !is_left(*inode));
        self.order.retain(|inode| !is_left(*inode));
    }

    fn take(&mut self, inode: InodeId, stamp: &Stamp) -> Option<Generation> {
        let (digest, generation) = self.by_inode.remove(&inode)?;
        (digest == stamp.digest()).then_some(generation)
    }
}

/// The files in memory.
#[derive(Default)]
struct Known {
    by_inode: BTreeMap<InodeId, Arc<File>>,
    /// The keys of `by_inode`, in the order of insertion or of the last reprieve.
    order: VecDeque<InodeId>,
    generations: Generations,
}

impl Known {
    fn get(&self, inode: InodeId) -> Option<Arc<File>> {
        let file = self.by_inode.get(&inode)?;
        file.used.store(true, Ordering::Relaxed);
        Some(file.clone())
    }

    /// Inserts a file. `most` are the limits on files and on generations.
    fn insert(&mut self, file: Arc<File>, most: (usize, usize)) -> Arc<File> {
        if self.by_inode.len() >= most.0 {
            self.evict(most.1);
        }
        self.by_inode.insert(file.inode, file.clone());
        self.order.push_back(file.inode);
        file
    }

    /// Evicts some of the oldest files that no request has used since their last examination. Files in the journal, as all dirty ones are,
    /// come back from there; of others the generation is kept.
    fn evict(&mut self, generations: usize) {
        let mut evicted = 0;
        for _ in 0..EXAMINED_MAX {
            let Some(inode) = self.order.pop_front() else { return };
            let Some(file) = self.by_inode.get(&inode) else { continue };
            if Arc::strong_count(file) > 1 || file.used.swap(false, Ordering::Relaxed) {
                self.order.push_back(inode);
                continue;
            }
            self.generations.keep(inode, &file.state().record, generations);
            self.by_inode.remove(&inode);
            evicted += 1;
            if evicted == EVICTED_MAX {
                return;
            }
        }
    }
}

/// The files of a coordinator.
pub(super) struct FileTable {
    journal: Arc<Journal>,
    known: Mutex<Known>,
    paths: Arc<Paths>,
}

/// Largest difference between the clocks of two nodes.
const SKEW_MAX: Duration = Duration::from_secs(3600);

const MOST: (usize, usize) = (IDLE_FILES_MAX, GENERATIONS_MAX);

impl FileTable {
    pub(super) fn new(journal: Arc<Journal>) -> Self {
        Self { journal, known: Mutex::default(), paths: Arc::default() }
    }

    fn insert(&self, known: &mut Known, inode: InodeId, record: Record) -> Arc<File> {
        known.insert(File::new(inode, record, self.paths.clone()), MOST)
    }

    /// A file, from memory or from the journal.
    pub(super) fn get(&self, inode: InodeId) -> Result<Option<Arc<File>>> {
        let mut known = self.known.lock();
        if let Some(file) = known.get(inode) {
            return Ok(Some(file));
        }
        let Some(record) = self.journal.get(inode)? else { return Ok(None) };
        let file = self.insert(&mut known, inode, record);
        file.state().may_be_written_late = true;
        Ok(Some(file))
    }

    /// A file that a client must have opened before. Fails with `ESTALE` if none has.
    pub(super) fn opened(&self, inode: InodeId) -> Result<Arc<File>> {
        let unknown = || Fault::new(Errno::ESTALE, format!("{inode} was not opened through its coordinator"));
        self.get(inode)?.ok_or_else(unknown)
    }

    /// A file, which is inserted with a new record if it is not known.
    pub(super) fn get_or_insert(&self, inode: InodeId, record: impl FnOnce() -> Record) -> Result<Arc<File>> {
        if let Some(file) = self.get(inode)? {
            return Ok(file);
        }
        let mut known = self.known.lock();
        if let Some(file) = known.get(inode) {
            return Ok(file);
        }
        let mut record = record();
        if let Some(generation) = known.generations.take(inode, &record.stamp) {
            record.generation = generation;
        }
        Ok(self.insert(&mut known, inode, record))
    }

    /// Changes the state of a file, and writes its record to the journal if it has one there. If the journal cannot be written, the record
    /// stays as it was; the state of the shared file does not.
    pub(super) fn update<T>(&self, file: &File, change: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = file.state();
        let before = state.record.clone();
        let result = change(&mut state);
        if state.record.journaled
            && state.record != before
            && let Err(fault) =
                self.journal.put(file.inode, before.journaled.then_some(&before), &state.record)
        {
            state.record = before;
            return Err(fault);
        }
        self.paths.replace(file.inode, &before.paths, &state.record.paths);
        Ok(result)
    }

    /// The files in memory with a path below `directory`.
    pub(super) fn below(&self, directory: &[u8]) -> Vec<Arc<File>> {
        let inodes = self.paths.below(directory);
        let known = self.known.lock();
        inodes.iter().filter_map(|inode| known.by_inode.get(inode).cloned()).collect()
    }

    /// Forgets files that another node coordinates now.
    pub(super) fn forget(&self, is_left: impl Fn(InodeId) -> bool) {
        let mut known = self.known.lock();
        let inodes: Vec<_> = known.by_inode.keys().copied().filter(|inode| is_left(*inode)).collect();
        let left: Vec<_> = inodes.iter().filter_map(|inode| known.by_inode.remove(inode)).collect();
        known.order.retain(|inode| !is_left(*inode));
        known.generations.forget(is_left);
        drop(known);
        drop(left);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.lock().by_inode.len()
    }
}

/// A generation that no content had in an earlier incarnation of this agent, nor at an earlier coordinator of the file. Each map adds
/// [`SKEW_MAX`], by which the clocks of two coordinators may differ.
pub(super) fn fresh_generation(runtime: &tameike_io::Runtime, epoch: MapEpoch) -> Generation {
    let now = runtime.now();
    let micros = now.seconds.max(0) as u64 * 1_000_000 + u64::from(now.nanoseconds / 1000);
    Generation(micros + epoch.0.saturating_mul(SKEW_MAX.as_micros() as u64))
}

#[cfg(test)]
mod tests;
