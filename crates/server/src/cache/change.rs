//! What clients tell the coordinator while they work on a file.

use super::files::{File, fresh_generation};
use super::record::Record;
use super::{CacheService, UNKNOWN};
use crate::unit::digest::unit_count;
use std::sync::Arc;
use tameike_core::limits::FILE_SIZE_MAX;
use tameike_core::wire::cache::{CacheReply, CacheState, Stamp, Writing};
use tameike_core::wire::holders::Holder;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Errno, InodeId, NodeId, Result, Timestamp};

/// What a client does with a file when its coordinator hears of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// It has made it.
    Made,
    /// It has opened it.
    Opened,
    /// It writes to it.
    Written,
}

impl CacheService {
    /// The file with this stamp, known or new, with everything finished that was left half done.
    async fn meet(&self, inode: InodeId, path: &[u8], stamp: Stamp, met: Met) -> Result<Arc<File>> {
        let make = || Record::new(path, stamp, fresh_generation(&self.parts.runtime));
        let file = self.files.get_or_make(&self.journal, inode, make)?;
        self.revive(&file, path, stamp, met).await?;
        if file.state().record.removed {
            return Ok(file);
        }
        let is_unfinished = {
            let state = file.state();
            state.record.cut.is_some() || state.record.space.is_some()
        };
        if is_unfinished {
            let _flush = file.flush.lock().await;
            self.finish_cut(&file).await?;
        }
        self.notice_change(&file, path, stamp, met).await?;
        Ok(file)
    }

    /// A removed file whose number another file has got begins anew. One that was removed while a client was opening it
    /// does not: it would be empty, as its content was in the pool.
    async fn revive(&self, file: &Arc<File>, path: &[u8], stamp: Stamp, met: Met) -> Result<()> {
        if !file.state().record.removed {
            return Ok(());
        }
        let _flush = file.flush.lock().await;
        if !file.state().record.removed {
            return Ok(());
        }
        match (self.look_at(file.inode, path).await, met) {
            (Ok(_), _) => {}
            // This machine remembers what had the name before.
            (Err(fault), Met::Made) if fault.errno == Errno::ESTALE => {}
            (Err(fault), Met::Made | Met::Opened) if fault.errno == Errno::ENOENT => {
                return Err(Errno::ESTALE.into());
            }
            // A client that has had it open since before its removal still writes to it.
            (Err(fault), Met::Written) if matches!(fault.errno, Errno::ENOENT | Errno::ESTALE) => {
                return Ok(());
            }
            (Err(fault), _) => return Err(fault),
        }
        let request = UnitRequest::Truncate { inode: file.inode, size: 0 };
        let homes = self.homes_reached(file.inode, &file.state().record);
        self.ask_units(homes, &request).await?;
        file.update(&self.journal, |state| {
            let generation = state.record.generation.next();
            // Written down as the removed one was, so that this supersedes it.
            state.begin_anew(Record { journaled: true, ..Record::new(path, stamp, generation) });
        })
    }

    /// Compares the shared file with what we know of it. A client may have seen it in the middle of a flush:
    /// before anything is concluded, it is looked at again, and once more when a flush has ended meanwhile: what
    /// was seen before its end would give the file an old size.
    async fn notice_change(&self, file: &Arc<File>, path: &[u8], stamp: Stamp, met: Met) -> Result<()> {
        loop {
            let known = {
                let state = file.state();
                let as_known = state.flushing || state.record.is_as_known(&stamp);
                (!as_known).then(|| state.record.clone())
            };
            let mut path = path.to_vec();
            let now = match known {
                Some(known) if met == Met::Made => Some((known.stamp, stamp)),
                Some(mut known) => {
                    // Another node may have renamed it since the client had its path.
                    known.prefer_path(&path);
                    let (found, stat) = self.locate_patiently(file.inode, &known).await?;
                    path = found;
                    Some((known.stamp, stat.stamp()))
                }
                None => None,
            };
            let time = self.parts.runtime.now();
            let concluded = file.update(&self.journal, |state| {
                state.record.prefer_path(&path);
                state.record.removing = false;
                match now {
                    Some((known, _)) if !state.flushing && state.record.stamp != known => false,
                    Some((_, now)) if !state.flushing && !state.record.is_as_known(&now) => {
                        state.take_change(now, time);
                        true
                    }
                    _ => true,
                }
            })?;
            if concluded {
                return Ok(());
            }
        }
    }

    /// A node opens a file; what is known of it, and who may have it in memory, as the node will if it `holds` it.
    pub(super) async fn open(
        &self,
        (inode, path, stamp, met): (InodeId, &[u8], Stamp, Met),
        by: NodeId,
        holds: bool,
    ) -> Result<(CacheState, Vec<Holder>)> {
        let file = self.meet(inode, path, stamp, met).await?;
        // Under one lock: a removal either finds the node among the openers, or is told to it here.
        let mut state = file.state();
        if state.record.removed {
            return Err(Errno::ESTALE.into());
        }
        if holds {
            state.openers.insert(by);
        }
        if met == Met::Made {
            state.take_made(&stamp, self.parts.runtime.now());
        }
        let removing = self.is_being_removed(inode);
        let known = CacheState { removing, ..state.record.state(Some(&stamp)) };
        drop(state);
        let holders = if holds { self.parts.holders.opened(inode, known.generation, by) } else { Vec::new() };
        Ok((known, holders))
    }

    pub(super) async fn dirty(
        &self,
        (inode, path, stamp): (InodeId, &[u8], Stamp),
        writer: Option<NodeId>,
        reach: u64,
    ) -> Result<CacheState> {
        let file = self.meet(inode, path, stamp, Met::Written).await?;
        let (state, removed) = file.update(&self.journal, |state| {
            // What is written to a removed file ends with its last descriptor, or is known for it after a crash.
            if !state.record.removed {
                state.changes += 1;
                state.record.dirty = true;
            }
            state.record.journaled = true;
            state.record.reach = state.record.reach.max(reach);
            writer.into_iter().for_each(|node| state.record.set_writer(node, true));
            (state.record.state(Some(&stamp)), state.record.removed)
        })?;
        if !removed {
            self.mark_dirty(inode);
        }
        self.journal.sync(false).await?;
        Ok(state)
    }

    pub(super) async fn commit(
        &self,
        inode: InodeId,
        (end, sparse): (u64, bool),
        now: Timestamp,
        by: NodeId,
    ) -> Result<CacheState> {
        let file = self.known(inode)?;
        let before = file.state().record.clone();
        if before.removed {
            let request = UnitRequest::Truncate { inode, size: 0 };
            self.ask_units(self.homes_reached(inode, &before), &request).await?;
            let state = file.state().record.state(None);
            return Ok(state);
        }
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let state = file.update(&self.journal, |state| {
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
        self.parts.holders.changed(inode, state.generation, by);
        self.mark_dirty(inode);
        self.journal.sync(false).await?;
        Ok(state)
    }

    /// What becomes of a node's writes to a file. One that is not known any more was removed.
    pub(super) async fn writing(&self, inode: InodeId, what: Writing, by: NodeId) -> Result<CacheReply> {
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(CacheReply::Done) };
        file.update(&self.journal, |state| match what {
            Writing::Begins { reach } => {
                state.record.reach = state.record.reach.max(reach);
                state.record.set_writer(by, true);
            }
            Writing::Ends => state.record.set_writer(by, false),
            Writing::CutOff => state.record.cut_off = true,
        })?;
        self.journal.sync(false).await.map(|()| CacheReply::Done)
    }

    /// Takes note of the files that were being written when the job was cut off.
    ///
    /// # Errors
    /// The ledger cannot be read or written.
    pub fn take_cut_off(&self) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.journal.page(after, 1024)?;
            let Some(&(last, _)) = page.last() else { return Ok(()) };
            for (inode, record) in page {
                if !record.writers.is_empty()
                    && let Some(file) = self.files.get(&self.journal, inode)?
                {
                    file.update(&self.journal, |state| {
                        state.record.writers.clear();
                        state.record.cut_off = true;
                    })?;
                }
            }
            after = Some(last);
        }
    }

    pub(super) async fn reserve(
        &self,
        inode: InodeId,
        length: u64,
        now: Timestamp,
    ) -> Result<(u64, CacheState)> {
        let (reserved, removed, reaches_on) = self.known(inode)?.update(&self.journal, |state| {
            let record = &mut state.record;
            let offset = record.size;
            let size = offset.checked_add(length).filter(|&size| size <= FILE_SIZE_MAX);
            let Some(size) = size else { return (Err(Errno::EFBIG.into()), record.removed, false) };
            state.changes += 1;
            let reaches_on = unit_count(size) > record.reach;
            if reaches_on {
                record.reach = unit_count(size).next_power_of_two();
            }
            (record.size, record.mtime) = (size, now);
            if !record.removed {
                // As in `dirty`: what is written to a removed file goes nowhere.
                (record.dirty, record.journaled) = (true, true);
            }
            (Ok((offset, record.state(None))), record.removed, reaches_on)
        })?;
        if reserved.is_ok() && !removed {
            self.mark_dirty(inode);
        }
        if reaches_on {
            self.journal.sync(false).await?;
        }
        reserved
    }

    /// A program has set the time of last change, which the client has passed to the shared file already. A flush
    /// that was under way may have set another one since: then the file is to be flushed once more.
    pub(super) async fn set_mtime(&self, inode: InodeId, mtime: Timestamp) -> Result<CacheState> {
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(UNKNOWN) };
        let state = loop {
            let seen = file.state().record.clone();
            let now = self.locate(inode, &seen).await.ok().map(|(_, stat)| stat.stamp());
            let taken = file.update(&self.journal, |state| {
                // A flush has ended meanwhile: what was seen may be of the time before.
                if (state.record.stamp, state.record.dirty) != (seen.stamp, seen.dirty) {
                    return None;
                }
                state.take_mtime(mtime, now);
                Some((state.record.state(None), state.record.dirty))
            })?;
            if let Some((state, dirty)) = taken {
                if dirty {
                    self.mark_dirty(inode);
                }
                break state;
            }
        };
        self.journal.sync(false).await?;
        Ok(state)
    }

    pub(super) async fn renamed(&self, inode: Option<InodeId>, from: &[u8], to: &[u8]) -> Result<()> {
        if let Some(inode) = inode {
            let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(()) };
            file.update(&self.journal, |state| state.record.prefer_path(to))?;
            return self.journal.sync(false).await;
        }
        for file in self.files.below(from) {
            self.move_below(&file, from, to)?;
        }
        let mut next = Some(Vec::new());
        while let Some(start) = next {
            let (inodes, more) = self.journal.below(from, start, 1024)?;
            for inode in inodes {
                if let Some(file) = self.files.get(&self.journal, inode)? {
                    self.move_below(&file, from, to)?;
                }
            }
            next = more;
        }
        self.journal.sync(false).await
    }

    /// Adds the new paths of a file that lies below a renamed directory.
    fn move_below(&self, file: &Arc<File>, from: &[u8], to: &[u8]) -> Result<()> {
        let below = |path: &[u8]| {
            Some([to, path.strip_prefix(from)?.strip_prefix(b"/").map(|_| &path[from.len()..])?].concat())
        };
        // A rename that was told and then failed has left a path at which the file is not: all follow.
        let moved = |record: &Record| record.paths.iter().filter_map(|path| below(path)).collect::<Vec<_>>();
        if moved(&file.state().record).is_empty() {
            return Ok(());
        }
        file.update(&self.journal, |state| {
            for path in moved(&state.record).iter().rev() {
                state.record.prefer_path(path);
            }
        })
    }

    /// `fsync`: the record and all dirty bytes are on the devices of the job.
    pub(super) async fn make_durable(&self, inode: InodeId) -> Result<()> {
        // The journal names the file by what it is called, which must be there as long.
        let shared = self.parts.shared.clone();
        let path = self.path_of(inode);
        self.parts.runtime.block(move || shared.sync_name(&path)).await?;
        self.journal.sync(true).await?;
        let record = self.files.get(&self.journal, inode)?.map(|file| file.state().record.clone());
        // What is clean was synced on the shared file.
        let homes = record.filter(|record| record.dirty).map(|record| self.homes_committed(inode, &record));
        self.ask_units(homes.unwrap_or_default(), &UnitRequest::Sync { inode, durable: true }).await
    }
}
