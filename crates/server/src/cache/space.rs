//! Space of a file's bytes is set aside or given back (`fallocate`): on the shared file system, where the bytes end up.
//!
//! As with a cut, the shared file is changed first: what is read from it afterwards cannot bring old bytes back.

use super::CacheService;
use super::files::File;
use crate::ending::learn_size;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{FILE_SIZE_MAX, UNIT_SIZE};
use tameike_core::wire::cache::{CacheState, Stamp};
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{Errno, InodeId, Result, Timestamp};
use tameike_io::shared::{Access, Allocate, SharedFile, open_same};

const UNIT: u64 = UNIT_SIZE as u64;

impl CacheService {
    pub(super) async fn change_space(
        &self,
        inode: InodeId,
        (change, bytes): (SpaceChange, Range<u64>),
        grows: bool,
        now: Timestamp,
    ) -> Result<CacheState> {
        if bytes.is_empty() || bytes.end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let file = self.known(inode)?;
        let _flush = file.flush.lock().await;
        self.finish_cut(&file).await?;
        let before = file.state().record.clone();
        // The record says what is being done, so that a new life of this agent ends it.
        file.update(&self.journal, |state| {
            state.changes += 1;
            let record = &mut state.record;
            record.space = Some((change, bytes.start, bytes.end));
            record.generation = record.generation.next();
            record.size = if grows { record.size.max(bytes.end) } else { record.size };
            record.mtime = now;
            (record.sparse, record.dirty, record.journaled) = (true, true, true);
        })?;
        self.journal.sync(false).await?;
        self.mark_dirty(inode);
        if let Err(fault) = self.change_shared(&file).await {
            // What it has changed all the same is no change by others.
            let stamp = self.locate(inode, &before).await.map_or(before.stamp, |(_, stat)| stat.stamp());
            file.update(&self.journal, |state| {
                let record = &mut state.record;
                record.space = None;
                (record.size, record.mtime, record.stamp) = (before.size, before.mtime, stamp);
            })?;
            return Err(fault);
        }
        self.finish_space(&file).await?;
        let state = file.state().record.state(None);
        Ok(state)
    }

    /// Ends a change of space that the record speaks of. The file's flush lock is held.
    pub(super) async fn finish_space(&self, file: &Arc<File>) -> Result<()> {
        let Some((change, start, end)) = file.state().record.space else { return Ok(()) };
        self.change_shared(file).await?;
        if change != SpaceChange::Allocate {
            let request =
                UnitRequest::Space { inode: file.inode, change: SpaceChange::Punch, start, end, step: 1 };
            let homes = self.homes_reached(file.inode, &file.state().record);
            self.ask_units(homes, &request).await?;
            if file.state().record.interrupted {
                // A flush that was given up may have written there meanwhile.
                self.change_shared(file).await?;
            }
            self.digest_anew(file, start..end).await?;
        }
        file.update(&self.journal, |state| {
            state.record.space = None;
            // Who has learnt of this version before may have read what was there until now.
            state.record.generation = state.record.generation.next();
        })
    }

    /// Units without any byte left have no digest: nobody vouches for holes. Those at the ends of the range are
    /// digested as they are now.
    async fn digest_anew(&self, file: &File, bytes: Range<u64>) -> Result<()> {
        let whole = bytes.start.div_ceil(UNIT)..bytes.end / UNIT;
        self.journal.drop_digests(file.inode, whole.clone())?;
        let record = file.state().record.clone();
        let mut ends = vec![bytes.start / UNIT, (bytes.end - 1) / UNIT];
        ends.dedup();
        ends.retain(|index| !whole.contains(index));
        let mut units = Vec::new();
        for index in ends {
            let known = self.journal.digests(file.inode, index, index + 1, 1)?;
            units.extend(known.iter().map(|digest| digest.index));
        }
        if units.is_empty() {
            return Ok(());
        }
        let (path, _) = self.locate(file.inode, &record).await?;
        let digests = self.digest_units(file.inode, &path, record.size, units).await?;
        self.journal.put_digests(file.inode, &digests)
    }

    async fn change_shared(&self, file: &Arc<File>) -> Result<()> {
        let record = file.state().record.clone();
        let Some((change, start, end)) = record.space else { return Ok(()) };
        let (path, _) = self.locate(file.inode, &record).await?;
        let (shared, inode) = (self.parts.shared.clone(), file.inode);
        let work = move || {
            let (shared_file, stat) = open_same(&*shared, &path, inode, Access::Write)?;
            let size = learn_size(&*shared_file, &stat, record.stamp.size.max(start + 1))?;
            apply(&*shared_file, change, start..end, size.max(record.stamp.size))?;
            shared_file.stat().map(|stat| stat.stamp())
        };
        let stamp: Stamp = self.parts.runtime.block(work).await?;
        file.update(&self.journal, |state| state.record.stamp = stamp)
    }
}

/// Does to the shared file what can be seen of it. Its size stays: the flush sets it, with the bytes.
fn apply(file: &dyn SharedFile, change: SpaceChange, bytes: Range<u64>, size: u64) -> Result<()> {
    let length = bytes.end - bytes.start;
    // Beyond the end there is nothing to give back, and a file system that cannot need not be asked.
    if change != SpaceChange::Allocate && bytes.start < size {
        file.allocate(Allocate::Punch, bytes.start, length)?;
    }
    if change != SpaceChange::Punch {
        file.allocate(Allocate::Keep, bytes.start, length)?;
    }
    Ok(())
}
