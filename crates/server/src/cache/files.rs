//! The coordinated files in memory: those in use, and as many others as fit.

use super::paths::Paths;
use super::record::{Journal, Record};
use super::signs::{Sign, Written};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::wire::cache::Stamp;
use tameike_core::{Generation, InodeId, NodeId, Result, Timestamp};

/// Files kept in memory without being in use.
const IDLE_FILES_MAX: usize = 64 << 10;
/// Of files that are not in memory any more, so many have their version remembered.
const VERSIONS_MAX: usize = 1 << 18;
/// Files that are looked at for one that is to go, and those that go at once.
const LOOKED_AT_MAX: usize = 16;
const GONE_MAX: usize = 2;

/// A coordinated file.
pub(super) struct File {
    pub(super) inode: InodeId,
    /// Held while the file is flushed or cut.
    pub(super) flush: async_lock::Mutex<()>,
    state: Mutex<State>,
    /// Whether it was asked for since it was last looked at as one that could go.
    used: AtomicBool,
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
    /// Whether a node may write to the file after its removal: one that could not be notified, or is not known to have it open.
    pub(super) is_written_late: bool,
    /// The time that made the shared file look changed by others, until it turns out that a client has set it.
    pub(super) suspect: Option<Timestamp>,
    /// When flushes wrote to the shared file.
    written: Option<Written>,
}

impl State {
    /// What a shared file tells that is `now` so, and not as we know it.
    pub(super) fn sign(&self, stamp: &Stamp, now: Timestamp) -> Sign {
        // A program has set this time, which was not shown yet when we were told.
        let record = &self.record;
        if record.dirty && (record.stamp.size, record.mtime) == (stamp.size, stamp.mtime) {
            return Sign::Own;
        }
        self.written.as_ref().map_or(Sign::Change, |written| written.sign(&self.record, stamp, now))
    }

    /// Takes note of a shared file that is `now` not as we know it: of what others have done, as it seems, since a client sets a
    /// time on it before it tells us.
    pub(super) fn take_change(&mut self, stamp: Stamp, now: Timestamp) {
        let sign = self.sign(&stamp, now);
        let record = &mut self.record;
        match sign {
            Sign::Old => {}
            Sign::Own => {
                record.stamp = stamp;
                record.mtime = if record.dirty { record.mtime } else { stamp.mtime };
            }
            Sign::Doubtful => record.renew(stamp),
            Sign::Change => {
                let (known, size) = (record.changed_by_others, record.stamp.size);
                record.take_change(stamp);
                let is_first = record.changed_by_others && !known && stamp.size == size;
                self.suspect = is_first.then_some(stamp.mtime);
            }
        }
    }

    /// Another file has got the number.
    pub(super) fn begin_anew(&mut self, record: Record) {
        (self.record, self.written, self.suspect) = (record, None, None);
        self.is_written_late = false;
    }

    /// A node has just made the file, and saw it as `stamp`: some file systems give it other times once it has been made.
    pub(super) fn take_made(&mut self, stamp: &Stamp, now: Timestamp) {
        if self.written.is_none() && self.record.has_content_of(stamp) {
            let seconds = |time: Timestamp, more: i64| Timestamp { seconds: time.seconds + more, ..time };
            let (began, ended) = (seconds(stamp.mtime, -1), seconds(stamp.ctime.max(now), 1));
            self.written = Some(Written::new(None, began, ended, None));
        }
    }

    /// A flush that began at this time has written to the shared file until `ended`, and left it as `stamp`; others do the rest.
    pub(super) fn take_part(&mut self, began: Timestamp, ended: Timestamp, stamp: Stamp) {
        self.written = Some(Written::new(self.written.take(), began, ended, None));
        self.record.stamp = stamp;
    }

    /// A flush that began at this time has written all, set the time that programs gave the file, and left it as `stamp`.
    pub(super) fn take_whole(&mut self, began: Timestamp, ended: Timestamp, stamp: Stamp) {
        self.written = Some(Written::new(self.written.take(), began, ended, Some(stamp)));
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
            is_written_late: false,
            suspect: None,
            written: None,
        });
        let used = AtomicBool::new(false);
        Arc::new(Self { inode, flush: async_lock::Mutex::new(()), state, used, paths })
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

/// Versions of files that are not in memory any more, and not in the ledger: with the digest of the stamp under which each was seen.
/// A file that is still as it was goes on with its version, under which its bytes are kept.
#[derive(Default)]
struct Versions {
    by_inode: BTreeMap<InodeId, (u64, Generation)>,
    /// In the order in which they came; of one that has gone since, too.
    order: VecDeque<InodeId>,
}

impl Versions {
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

    fn take(&mut self, inode: InodeId, stamp: &Stamp) -> Option<Generation> {
        let (digest, generation) = self.by_inode.remove(&inode)?;
        (digest == stamp.digest()).then_some(generation)
    }
}

/// What is in memory.
#[derive(Default)]
struct Known {
    by_inode: BTreeMap<InodeId, Arc<File>>,
    /// Those of `by_inode` in the order in which they came, or were last spared.
    order: VecDeque<InodeId>,
    versions: Versions,
}

impl Known {
    fn get(&self, inode: InodeId) -> Option<Arc<File>> {
        let file = self.by_inode.get(&inode)?;
        file.used.store(true, Ordering::Relaxed);
        Some(file.clone())
    }

    fn insert(
        &mut self,
        inode: InodeId,
        record: Record,
        paths: &Arc<Paths>,
        most: (usize, usize),
    ) -> Arc<File> {
        if self.by_inode.len() >= most.0 {
            self.make_room(most.1);
        }
        let file = File::new(inode, record, paths.clone());
        self.by_inode.insert(inode, file.clone());
        self.order.push_back(inode);
        file
    }

    /// Lets some files go that came first and were not asked for since. Those in the ledger, as all dirty ones are, come back from
    /// there; of others the version is remembered.
    fn make_room(&mut self, versions: usize) {
        let mut gone = 0;
        for _ in 0..LOOKED_AT_MAX {
            let Some(inode) = self.order.pop_front() else { return };
            let Some(file) = self.by_inode.get(&inode) else { continue };
            if Arc::strong_count(file) > 1 || file.used.swap(false, Ordering::Relaxed) {
                self.order.push_back(inode);
                continue;
            }
            self.versions.keep(inode, &file.state().record, versions);
            self.by_inode.remove(&inode);
            gone += 1;
            if gone == GONE_MAX {
                return;
            }
        }
    }
}

/// The files in memory.
#[derive(Default)]
pub(super) struct Files {
    known: Mutex<Known>,
    paths: Arc<Paths>,
}

const MOST: (usize, usize) = (IDLE_FILES_MAX, VERSIONS_MAX);

impl Files {
    /// The file, from memory or from the ledger.
    pub(super) fn get(&self, journal: &Journal, inode: InodeId) -> Result<Option<Arc<File>>> {
        let mut known = self.known.lock();
        if let Some(file) = known.get(inode) {
            return Ok(Some(file));
        }
        let Some(record) = journal.get(inode)? else { return Ok(None) };
        let file = known.insert(inode, record, &self.paths, MOST);
        file.state().is_written_late = true;
        Ok(Some(file))
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
        let mut known = self.known.lock();
        if let Some(file) = known.get(inode) {
            return Ok(file);
        }
        let mut record = record();
        if let Some(generation) = known.versions.take(inode, &record.stamp) {
            record.generation = generation;
        }
        Ok(known.insert(inode, record, &self.paths, MOST))
    }

    /// The files in memory with a path below `directory`.
    pub(super) fn below(&self, directory: &[u8]) -> Vec<Arc<File>> {
        let inodes = self.paths.below(directory);
        let known = self.known.lock();
        inodes.iter().filter_map(|inode| known.by_inode.get(inode).cloned()).collect()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.lock().by_inode.len()
    }
}

/// A generation that no content of an earlier life of this agent had.
pub(super) fn fresh_generation(runtime: &tameike_io::Runtime) -> Generation {
    let now = runtime.now();
    Generation(now.seconds.max(0) as u64 * 1_000_000 + u64::from(now.nanoseconds / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(size: u64) -> Stamp {
        Stamp { size, ..Stamp::default() }
    }

    /// Once all files that nobody used went at once, and with them the versions under which their bytes were kept.
    #[test]
    fn files_go_one_after_the_other_oldest_first_and_keep_their_versions() {
        let (mut known, paths, most) = (Known::default(), Arc::default(), (8, 100));
        let record = |number: u64| Record::new(b"file", stamp(number), Generation(1000 + number));
        let held = known.insert(InodeId(0), record(0), &paths, most);
        for number in 1..50 {
            known.insert(InodeId(number), record(number), &paths, most);
            assert!(known.get(InodeId(1)).is_some(), "it is asked for again and again");
            assert!(known.by_inode.len() >= 6.min(number as usize) && known.by_inode.len() <= 9);
        }
        assert!(known.by_inode.contains_key(&InodeId(0)) && known.by_inode.contains_key(&InodeId(49)));
        drop(held);
        let (same, other) = (stamp(7), stamp(8));
        assert_eq!(known.versions.take(InodeId(7), &same), Some(Generation(1007)));
        assert_eq!(known.versions.take(InodeId(7), &same), None, "it is in memory now");
        assert_eq!(known.versions.take(InodeId(9), &other), None, "it was changed meanwhile");
    }

    #[test]
    fn versions_are_bounded_and_those_of_the_ledger_are_not_kept_twice() {
        let mut versions = Versions::default();
        for number in 0..100 {
            versions.keep(InodeId(number), &Record::new(b"f", stamp(1), Generation(number)), 10);
        }
        assert_eq!((versions.by_inode.len(), versions.order.len()), (10, 10));
        assert_eq!(versions.take(InodeId(99), &stamp(1)), Some(Generation(99)));
        let journaled = Record { journaled: true, ..Record::new(b"f", stamp(1), Generation(5)) };
        versions.keep(InodeId(200), &journaled, 10);
        assert_eq!(versions.take(InodeId(200), &stamp(1)), None);
    }
}
