//! Serves the reports of clients on files: opens, first writes, commits, renames.

use super::base::Base;
use super::change_detection::Verdict;
use super::file_table::{File, State, fresh_generation};
use super::record::Record;
use super::removal::Removals;
use super::renames::{Renames, Reported, end_rename};
use super::resize::Resizer;
use crate::holders::CacheTable;
use crate::unit::digest::unit_count;
use std::sync::Arc;
use tameike_core::limits::FILE_SIZE_MAX;
use tameike_core::wire::cache::{CacheReply, CacheState, Stamp, Writing};
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::holders::{Holder, HolderOutcome};
use tameike_core::wire::reclaim::OpenFile;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Errno, Fault, Generation, HomeId, InodeId, NodeId, Result, Timestamp};

/// The state of a file that the job does not know.
const UNKNOWN: CacheState =
    CacheState { generation: Generation(0), newer: None, sparse: false, removing: false };

/// What a client has done to a file when it reports it to the coordinator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Contact {
    Created,
    Opened,
    Written,
}

/// A file as a client reports it: the path and stamp that it saw, and what it does there.
#[derive(Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) path: &'a [u8],
    pub(super) stamp: Stamp,
    pub(super) contact: Contact,
}

/// Serves the reports of clients on files.
pub(super) struct Coordinator {
    base: Base,
    removals: Arc<Removals>,
    resizer: Arc<Resizer>,
    holders: Arc<CacheTable>,
    renames: Renames,
}

impl Coordinator {
    pub(super) fn new(
        base: Base,
        removals: Arc<Removals>,
        resizer: Arc<Resizer>,
        holders: Arc<CacheTable>,
    ) -> Self {
        Self { base, removals, resizer, holders, renames: Renames::default() }
    }

    /// A record of a file that a node has seen at a path.
    fn new_record(&self, path: &[u8], stamp: Stamp, generation: Generation) -> Record {
        let mut record = Record::new(path, stamp, generation);
        self.add_seen_path(&mut record, path);
        record
    }

    /// Adds the path at which a node reports a file, and those to which renames of directories may have moved it.
    fn add_seen_path(&self, record: &mut Record, path: &[u8]) {
        self.renames.add_seen(record, path, self.base.runtime.clock.monotonic());
    }

    /// Changes the paths of a file. Changes them again if a node has reported a rename meanwhile, which may not have found the file below its
    /// directory yet.
    fn change_paths(&self, file: &File, change: impl Fn(&mut State)) -> Result<()> {
        loop {
            let reports = self.renames.reports();
            self.base.files.update(file, &change)?;
            if self.renames.reports() == reports {
                return Ok(());
            }
        }
    }

    /// A generation that no file had at an earlier coordinator.
    fn fresh_generation(&self) -> Generation {
        fresh_generation(&self.base.runtime, self.base.homes.epoch())
    }

    /// Takes over the files of an earlier incarnation.
    pub(super) fn recover(&self) -> Result<()> {
        self.take_over_records(|_| true)
    }

    /// Takes over the files of a home from another coordinator, with those that nodes have open.
    pub(super) fn take_over(&self, home: HomeId, open: &[(NodeId, OpenFile)]) -> Result<()> {
        self.take_over_records(|inode| self.base.homes.of_record(inode) == home)?;
        open.iter().try_for_each(|(node, file)| self.reopen(*node, file))
    }

    /// Notes that a node has had a file open since another node coordinated it.
    pub(super) fn reopen(&self, node: NodeId, OpenFile { inode, path, stamp }: &OpenFile) -> Result<()> {
        let record = || self.new_record(path, *stamp, self.fresh_generation());
        let file = self.base.files.get_or_insert(*inode, record)?;
        let mut state = file.state();
        state.openers.insert(node);
        state.may_be_written_late = true;
        Ok(())
    }

    /// Forgets the files of a home that another node coordinates now.
    pub(super) fn leave(&self, home: HomeId) {
        let is_left = |inode| self.base.homes.of_record(inode) == home;
        self.base.queue.forget(is_left);
        self.base.files.forget(is_left);
    }

    /// Gives a new generation to each file of which the journal has a record: it may lack the last ones.
    fn take_over_records(&self, is_meant: impl Fn(InodeId) -> bool) -> Result<()> {
        let Base { journal, queue, .. } = &self.base;
        let fresh = self.fresh_generation();
        journal.for_each(|inode, before| {
            if !is_meant(inode) {
                return Ok(());
            }
            let generation = fresh.max(before.generation.next());
            let record = Record { generation, ..before.clone() };
            journal.put(inode, Some(&before), &record)?;
            if record.dirty || record.removing {
                queue.add_if_absent(inode);
            }
            Ok(())
        })
    }

    /// Counts the demand for files that an opening client reports.
    pub(super) fn note_demand(&self, outcomes: &[HolderOutcome]) {
        self.holders.add_outcomes(outcomes);
    }

    /// The path of a file below the shared directory, as far as this coordinator knows; empty otherwise.
    pub(super) fn path_of(&self, inode: InodeId) -> Vec<u8> {
        let known = self.base.files.get(inode).ok().flatten();
        let path = known.and_then(|file| file.state().record.paths.first().map(|path| path.to_vec()));
        path.unwrap_or_default()
    }

    /// The state of a file that a client saw with this size and mtime. If the record has others, a flush may have ended since, or another
    /// program may have changed the file: its attributes are fetched again.
    pub(super) async fn state(&self, inode: InodeId, size: u64, mtime: Timestamp) -> Result<CacheState> {
        let Some(file) = self.base.files.get(inode)? else { return Ok(UNKNOWN) };
        let record = file.state().record.clone();
        if record.dirty || record.removed || (record.stamp.size, record.stamp.mtime) == (size, mtime) {
            return Ok(record.state(None));
        }
        let found = self.base.locator.locate_fresh(inode, &record).await;
        let seen = found.ok().map(|(_, stat)| stat.stamp());
        let now = self.base.runtime.now();
        let state = file.state();
        let is_stale =
            |seen: &Stamp| !state.record.matches_content(seen) && state.judge(seen, now) == Verdict::Stale;
        let seen = match seen {
            // The client needs the newer size and mtime all the same.
            Some(seen) if is_stale(&seen) => Some((state.record.size, state.record.mtime)),
            other => other.map(|seen| (seen.size, seen.mtime)),
        };
        let known = state.record.state(None);
        Ok(CacheState { newer: known.newer.or(seen), ..known })
    }

    /// The path of an open file. Fails with `ESTALE` if it was removed.
    pub(super) async fn find(&self, inode: InodeId) -> Result<Vec<u8>> {
        let record = self.base.files.opened(inode)?.state().record.clone();
        if record.removed {
            // Another file may have the number now.
            return Err(Fault::new(Errno::ESTALE, format!("{} was removed", record.shown_path())));
        }
        self.base.locator.locate(inode, &record).await.map(|(path, _)| path)
    }

    /// The file with this stamp, known or new, after pending truncates and changes of space are finished.
    async fn contact(&self, inode: InodeId, report: Report<'_>) -> Result<Arc<File>> {
        let record = || self.new_record(report.path, report.stamp, self.fresh_generation());
        let file = self.base.files.get_or_insert(inode, record)?;
        self.restart_reused(&file, report).await?;
        if file.state().record.removed {
            return Ok(file);
        }
        let is_unfinished = {
            let state = file.state();
            state.record.truncate_to.is_some() || state.record.space.is_some()
        };
        if is_unfinished {
            let _flush = file.flush.lock().await;
            self.resizer.finish(&file).await?;
        }
        self.detect_change(&file, report).await?;
        Ok(file)
    }

    /// Starts the record of a removed file over if another file has its inode number now. A file that was removed while a client opened it
    /// stays removed: the shared file may lack its content.
    async fn restart_reused(&self, file: &Arc<File>, report: Report<'_>) -> Result<()> {
        if !file.state().record.removed {
            return Ok(());
        }
        let _flush = file.flush.lock().await;
        if !file.state().record.removed {
            return Ok(());
        }
        match (self.base.locator.check_at(file.inode, report.path).await, report.contact) {
            (Ok(_), _) => {}
            // The mount shows the old file of that name.
            (Err(fault), Contact::Created) if fault.errno == Errno::ESTALE => {}
            (Err(fault), Contact::Created | Contact::Opened) if fault.errno == Errno::ENOENT => {
                return Err(Errno::ESTALE.into());
            }
            // A client that had it open before its removal still writes to it.
            (Err(fault), Contact::Written) if matches!(fault.errno, Errno::ENOENT | Errno::ESTALE) => {
                return Ok(());
            }
            (Err(fault), _) => return Err(fault),
        }
        let request = UnitRequest::Truncate { inode: file.inode, size: 0 };
        let homes = &self.base.homes;
        homes.ask_all(|| homes.written(file.inode, &file.state().record), &request).await?;
        self.base.files.update(file, |state| {
            let generation = state.record.generation.next();
            // In the journal, as the removed one is, which this replaces.
            let record = self.new_record(report.path, report.stamp, generation);
            state.restart(Record { journaled: true, ..record });
        })
    }

    /// Compares the shared file with the record. A client may have seen it in the middle of a flush: so its attributes are fetched again
    /// before a change is recorded, and once more if a flush has ended meanwhile, as attributes from before its end would restore an old
    /// size.
    async fn detect_change(&self, file: &Arc<File>, report: Report<'_>) -> Result<()> {
        loop {
            let known = {
                let state = file.state();
                let is_unchanged = state.flushing || state.record.is_unchanged(&report.stamp);
                (!is_unchanged).then(|| state.record.clone())
            };
            let mut path = report.path.to_vec();
            let now = match known {
                Some(known) if report.contact == Contact::Created => Some((known.stamp, report.stamp)),
                Some(mut known) => {
                    // Another node may have renamed it since the client looked it up.
                    self.add_seen_path(&mut known, &path);
                    let (found, stat) = self.base.locator.locate_with_retry(file.inode, &known).await?;
                    path = found;
                    Some((known.stamp, stat.stamp()))
                }
                None => None,
            };
            let time = self.base.runtime.now();
            let reports = self.renames.reports();
            let is_decided = self.base.files.update(file, |state| {
                self.add_seen_path(&mut state.record, &path);
                state.record.removing = false;
                match now {
                    Some((known, _)) if !state.flushing && state.record.stamp != known => false,
                    Some((_, now)) if !state.flushing && !state.record.is_unchanged(&now) => {
                        state.observe(now, time);
                        true
                    }
                    _ => true,
                }
            })?;
            if self.renames.reports() != reports {
                self.change_paths(file, |state| self.add_seen_path(&mut state.record, &path))?;
            }
            if is_decided {
                return Ok(());
            }
        }
    }

    /// Opens a file for a node. Returns its state, and the cache holders of it; the node becomes one if it `holds` the file.
    pub(super) async fn open(
        &self,
        inode: InodeId,
        report: Report<'_>,
        by: NodeId,
        holds: bool,
    ) -> Result<(CacheState, Vec<Holder>)> {
        let file = self.contact(inode, report).await?;
        // Under one lock: either a removal finds the node among the openers, or this reply announces the removal.
        let mut state = file.state();
        if state.record.removed {
            return Err(Errno::ESTALE.into());
        }
        if holds {
            state.openers.insert(by);
        }
        if report.contact == Contact::Created {
            state.note_creation(&report.stamp, self.base.runtime.now());
        }
        let removing = self.removals.is_announced(inode);
        let known = CacheState { removing, ..state.record.state(Some(&report.stamp)) };
        drop(state);
        let holders = if holds { self.holders.opened(inode, known.generation, by) } else { Vec::new() };
        Ok((known, holders))
    }

    /// Records that a node is about to write to a file, before the first dirty byte is acknowledged.
    pub(super) async fn dirty(
        &self,
        inode: InodeId,
        report: Report<'_>,
        writer: Option<NodeId>,
        reach: u64,
    ) -> Result<CacheState> {
        let file = self.contact(inode, report).await?;
        let (state, removed) = self.base.files.update(&file, |state| {
            // Writes to a removed file end with its last descriptor; after a crash the record shows that they are of a removed file.
            if !state.record.removed {
                state.changes += 1;
                state.record.dirty = true;
            }
            state.record.journaled = true;
            state.record.reach = state.record.reach.max(reach);
            writer.into_iter().for_each(|node| state.record.set_writer(node, true));
            (state.record.state(Some(&report.stamp)), state.record.removed)
        })?;
        if !removed {
            self.base.queue.add(inode);
        }
        self.base.journal.sync(false).await?;
        Ok(state)
    }

    /// Commits the size and mtime of a node's writes.
    pub(super) async fn commit(
        &self,
        inode: InodeId,
        (end, sparse): (u64, bool),
        now: Timestamp,
        by: NodeId,
    ) -> Result<CacheState> {
        let file = self.base.files.opened(inode)?;
        let before = file.state().record.clone();
        if before.removed {
            let request = UnitRequest::Truncate { inode, size: 0 };
            self.base.homes.ask_all(|| self.base.homes.written(inode, &before), &request).await?;
            let state = file.state().record.state(None);
            return Ok(state);
        }
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let state = self.base.files.update(&file, |state| {
            state.changes += 1;
            let record = &mut state.record;
            record.generation = record.generation.next();
            record.size = record.size.max(end);
            record.sparse |= sparse;
            record.mtime = now;
            record.dirty = true;
            record.journaled = true;
            record.set_writer(by, false);
            record.state(None)
        })?;
        self.holders.changed(inode, state.generation, by);
        self.base.queue.add(inode);
        self.base.journal.sync(false).await?;
        Ok(state)
    }

    /// Records the begin or the end of a node's writes to a file. A file that is not known was removed.
    pub(super) async fn writing(&self, inode: InodeId, what: Writing, by: NodeId) -> Result<CacheReply> {
        let Some(file) = self.base.files.get(inode)? else { return Ok(CacheReply::Done) };
        self.base.files.update(&file, |state| match what {
            Writing::Begins { reach } => {
                state.record.reach = state.record.reach.max(reach);
                state.record.set_writer(by, true);
            }
            Writing::Ends => state.record.set_writer(by, false),
            Writing::Interrupted => state.record.writer_failed = true,
        })?;
        self.base.journal.sync(false).await.map(|()| CacheReply::Done)
    }

    /// Marks the files that programs were writing when the job failed.
    pub(super) fn mark_interrupted_writers(&self) -> Result<()> {
        let Base { journal, files, .. } = &self.base;
        journal.for_each(|inode, record| {
            if !record.writers.is_empty()
                && let Some(file) = files.get(inode)?
            {
                files.update(&file, |state| {
                    state.record.writers.clear();
                    state.record.writer_failed = true;
                })?;
            }
            Ok(())
        })
    }

    /// Reserves the range of an append at the end of a file, and returns its offset.
    pub(super) async fn reserve(
        &self,
        inode: InodeId,
        length: u64,
        now: Timestamp,
        call: Option<NumberedCall>,
    ) -> Result<(u64, CacheState)> {
        let (reserved, removed, is_extended) =
            self.base.files.update(&*self.base.files.opened(inode)?, |state| {
                let record = &mut state.record;
                if let Some(offset) = record.appended_at(call) {
                    return (Ok((offset, record.state(None))), record.removed, false);
                }
                let offset = record.size;
                let size = offset.checked_add(length).filter(|&size| size <= FILE_SIZE_MAX);
                let Some(size) = size else { return (Err(Errno::EFBIG.into()), record.removed, false) };
                state.changes += 1;
                let is_extended = unit_count(size) > record.reach;
                if is_extended {
                    record.reach = unit_count(size).next_power_of_two();
                }
                (record.size, record.mtime) = (size, now);
                record.keep_append(call, offset);
                if !record.removed {
                    // As in `dirty`.
                    (record.dirty, record.journaled) = (true, true);
                }
                (Ok((offset, record.state(None))), record.removed, is_extended)
            })?;
        if reserved.is_ok() && !removed {
            self.base.queue.add(inode);
        }
        if is_extended {
            self.base.journal.sync(false).await?;
        }
        reserved
    }

    /// Records an mtime that a program has set. The client has set it on the shared file already; a flush that ran then may have set another
    /// one since, and the file must be flushed once more.
    pub(super) async fn set_mtime(&self, inode: InodeId, mtime: Timestamp) -> Result<CacheState> {
        let Some(file) = self.base.files.get(inode)? else { return Ok(UNKNOWN) };
        let state = loop {
            let seen = file.state().record.clone();
            let now = self.base.locator.locate(inode, &seen).await.ok().map(|(_, stat)| stat.stamp());
            let taken = self.base.files.update(&file, |state| {
                // A flush has ended meanwhile: the stamp may be from before.
                if (state.record.stamp, state.record.dirty) != (seen.stamp, seen.dirty) {
                    return None;
                }
                state.note_mtime(mtime, now);
                Some((state.record.state(None), state.record.dirty))
            })?;
            if let Some((state, dirty)) = taken {
                if dirty {
                    self.base.queue.add(inode);
                }
                break state;
            }
        };
        self.base.journal.sync(false).await?;
        Ok(state)
    }

    /// Adds the new path of a file that a node is about to rename, or of all files below such a directory (without `inode`).
    pub(super) async fn renamed(&self, inode: Option<InodeId>, from: &[u8], to: &[u8]) -> Result<()> {
        match inode {
            Some(inode) => {
                if let Some(file) = self.base.files.get(inode)? {
                    self.change_paths(&file, |state| self.add_seen_path(&mut state.record, to))?;
                }
            }
            None => {
                let rename = self.renames.note(from, to, self.base.runtime.clock.monotonic());
                self.for_each_below(from, |file| self.move_below(file, rename))?;
            }
        }
        self.base.journal.sync(false).await
    }

    /// Adds the new paths of a file that lies below a directory that is about to be renamed.
    fn move_below(&self, file: &File, rename: Reported<'_>) -> Result<()> {
        self.change_paths(file, |state| self.renames.add_moved(&mut state.record, rename))
    }

    /// Notes the end of a reported rename, of a file or of a directory (without `inode`).
    pub(super) async fn rename_ended(
        &self,
        inode: Option<InodeId>,
        (from, to): (&[u8], &[u8]),
        is_renamed: bool,
    ) -> Result<()> {
        let end = |file: &File| {
            self.base.files.update(file, |state| end_rename(&mut state.record, from, to, is_renamed))
        };
        match inode {
            Some(inode) => self.base.files.get(inode)?.map_or(Ok(()), |file| end(&file))?,
            None => {
                self.renames.end(from, to, is_renamed, self.base.runtime.clock.monotonic());
                self.for_each_below(if is_renamed { from } else { to }, end)?;
            }
        }
        self.base.journal.sync(false).await
    }

    /// Calls `act` with each file that has a path below a directory.
    fn for_each_below(&self, directory: &[u8], act: impl Fn(&File) -> Result<()>) -> Result<()> {
        self.base.files.below(directory).iter().try_for_each(|file| act(file))?;
        let mut next = Some(Vec::new());
        while let Some(start) = next {
            let (inodes, more) = self.base.journal.below(directory, start, 1024)?;
            for inode in inodes {
                if let Some(file) = self.base.files.get(inode)? {
                    act(&file)?;
                }
            }
            next = more;
        }
        Ok(())
    }

    /// Serves an fsync: makes the record and all dirty bytes durable on the devices of the job.
    pub(super) async fn make_durable(&self, inode: InodeId) -> Result<()> {
        // The journal refers to the file by its name, which must be durable as well.
        let shared = self.base.shared.clone();
        let path = self.path_of(inode);
        self.base.runtime.block(move || shared.sync_name(&path)).await?;
        self.base.journal.sync(true).await?;
        let record = self.base.files.get(inode)?.map(|file| file.state().record.clone());
        // A clean file was synced on the shared file system.
        let Some(record) = record.filter(|record| record.dirty) else { return Ok(()) };
        let homes = || self.base.homes.committed(inode, &record);
        self.base.homes.ask_all(homes, &UnitRequest::Sync { inode, durable: true }).await
    }
}
