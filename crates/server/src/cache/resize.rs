//! Truncates files, and allocates or frees their space (`fallocate`).
//!
//! The shared file is changed first: a later read of it cannot bring removed bytes back. The record names the change before that, so that
//! a later incarnation of this agent finishes it.

use super::base::Base;
use super::file_table::File;
use crate::flush_end::learn_size;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, FILE_SIZE_MAX, UNIT_SIZE};
use tameike_core::wire::cache::{CacheState, Stamp};
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{Errno, InodeId, Layout, Result, Timestamp};
use tameike_io::shared::{Access, Allocate, SharedFile, open_same};

const UNIT: u64 = UNIT_SIZE as u64;
/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// Changes sizes and space of files.
pub(super) struct Resizer {
    base: Base,
}

impl Resizer {
    pub(super) fn new(base: Base) -> Self {
        Self { base }
    }

    /// Sets the size of a file on all nodes, or nowhere. After an error of the shared file system, the file has its old size.
    pub(super) async fn truncate(&self, inode: InodeId, size: u64, now: Timestamp) -> Result<CacheState> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let file = self.base.files.opened(inode)?;
        let _flush = file.flush.lock().await;
        self.finish(&file).await?;
        let before = file.state().record.clone();
        if before.removed {
            return Ok(before.state(None));
        }
        let mut changes = 0;
        self.base.files.update(&file, |state| {
            state.changes += 1;
            changes = state.changes;
            let record = &mut state.record;
            record.reach_end();
            let has_space = record.sparse && size <= record.size;
            record.truncate_to =
                (size < record.size || size < record.stamp.size || has_space).then_some(size);
            record.generation = record.generation.next();
            record.sparse = size > 0 && (record.sparse || size > record.size);
            (record.size, record.mtime) = (size, now);
            (record.dirty, record.journaled) = (true, true);
            // A file that is written from the start again is complete.
            record.writer_failed &= size > 0;
        })?;
        self.base.journal.sync(false).await?;
        if let Err(fault) = self.truncate_shared(&file).await {
            self.base.files.update(&file, |state| {
                let is_alone = state.changes == changes;
                let record = &mut state.record;
                (record.truncate_to, record.sparse) = (None, record.sparse || before.sparse);
                // A client may have learnt of this generation: it does not come again.
                record.generation = record.generation.next();
                if is_alone {
                    (record.size, record.mtime, record.dirty) = (before.size, before.mtime, before.dirty);
                } else {
                    record.size = record.size.max(before.size);
                }
            })?;
            return Err(fault);
        }
        self.base.queue.add(inode);
        self.finish(&file).await?;
        let state = file.state().record.state(None);
        Ok(state)
    }

    /// Allocates or frees space of a byte range; with `grows` the file grows to its end.
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
        let file = self.base.files.opened(inode)?;
        let _flush = file.flush.lock().await;
        self.finish(&file).await?;
        let before = file.state().record.clone();
        self.base.files.update(&file, |state| {
            state.changes += 1;
            let record = &mut state.record;
            record.space = Some((change, bytes.start, bytes.end));
            record.generation = record.generation.next();
            record.size = if grows { record.size.max(bytes.end) } else { record.size };
            record.mtime = now;
            (record.sparse, record.dirty, record.journaled) = (true, true, true);
        })?;
        self.base.journal.sync(false).await?;
        self.base.queue.add(inode);
        if let Err(fault) = self.change_shared_space(&file).await {
            // A part of the change may be done: it must not look like a change by another program.
            let stamp =
                self.base.locator.locate(inode, &before).await.map_or(before.stamp, |(_, stat)| stat.stamp());
            self.base.files.update(&file, |state| {
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

    /// Finishes the change of space and the truncate that a record names. The caller holds the file's flush lock. After an error, the
    /// record keeps the change.
    pub(super) async fn finish(&self, file: &Arc<File>) -> Result<()> {
        self.finish_space(file).await?;
        let Some(size) = file.state().record.truncate_to else { return Ok(()) };
        self.truncate_shared(file).await?;
        let request = UnitRequest::Truncate { inode: file.inode, size };
        let homes = || self.base.homes.written(file.inode, &file.state().record);
        self.base.homes.ask_all(homes, &request).await?;
        if file.state().record.flush_interrupted {
            // An abandoned flush may have written behind the new end meanwhile.
            self.truncate_shared(file).await?;
        }
        self.base.journal.drop_digests(file.inode, size / UNIT..u64::MAX)?;
        self.base.files.update(file, |state| {
            state.record.truncate_to = None;
            // A client that learnt of the last generation may have read old bytes.
            state.record.generation = state.record.generation.next();
        })
    }

    async fn finish_space(&self, file: &Arc<File>) -> Result<()> {
        let Some((change, start, end)) = file.state().record.space else { return Ok(()) };
        self.change_shared_space(file).await?;
        if change != SpaceChange::Allocate {
            let (inode, change, layout) = (file.inode, SpaceChange::Punch, Layout::Striped);
            let request = UnitRequest::Space { inode, change, start, end, layout };
            let homes = || self.base.homes.written(file.inode, &file.state().record);
            self.base.homes.ask_all(homes, &request).await?;
            if file.state().record.flush_interrupted {
                // An abandoned flush may have written there meanwhile.
                self.change_shared_space(file).await?;
            }
            self.renew_digests(file, start..end).await?;
        }
        self.base.files.update(file, |state| {
            state.record.space = None;
            // As after a truncate.
            state.record.generation = state.record.generation.next();
        })
    }

    /// Drops the digests of units that are holes now, and makes those of the units at the ends of the range again.
    async fn renew_digests(&self, file: &File, bytes: Range<u64>) -> Result<()> {
        let Base { journal, homes, locator, .. } = &self.base;
        let whole = bytes.start.div_ceil(UNIT)..bytes.end / UNIT;
        journal.drop_digests(file.inode, whole.clone())?;
        let record = file.state().record.clone();
        let mut ends = vec![bytes.start / UNIT, (bytes.end - 1) / UNIT];
        ends.dedup();
        ends.retain(|index| !whole.contains(index));
        let mut units = Vec::new();
        for index in ends {
            let known = journal.digests(file.inode, index, index + 1, 1)?;
            units.extend(known.iter().map(|digest| digest.index));
        }
        if units.is_empty() {
            return Ok(());
        }
        let (path, _) = locator.locate(file.inode, &record).await?;
        let digests = homes.digest(file.inode, &path, record.size, units).await?;
        journal.put_digests(file.inode, &digests)
    }

    /// Truncates the shared file if it is longer than the record says.
    async fn truncate_shared(&self, file: &Arc<File>) -> Result<()> {
        let record = file.state().record.clone();
        let Some(size) = record.truncate_to else { return Ok(()) };
        let (path, _) = self.base.locator.locate(file.inode, &record).await?;
        let (shared, inode) = (self.base.shared.clone(), file.inode);
        let truncate = move || {
            let (shared_file, stat) = open_same(&*shared, &path, inode, Access::Write)?;
            // The mount may show a stale size that is too small.
            let (blocks, known) = (stat.blocks, record.stamp.size);
            let end = learn_size(&*shared_file, &stat, known.max(size + 1))?.max(known);
            // Space may be allocated behind the end.
            let has_more = blocks * STAT_BLOCK > end.next_multiple_of(BLOCK_SIZE as u64);
            if end > size || has_more {
                shared_file.truncate(size.min(end))?;
            }
            shared_file.stat().map(|stat| stat.stamp())
        };
        let stamp = self.base.change_shared(inode, truncate).await?;
        self.base.files.update(file, |state| state.record.stamp = stamp)
    }

    async fn change_shared_space(&self, file: &Arc<File>) -> Result<()> {
        let record = file.state().record.clone();
        let Some((change, start, end)) = record.space else { return Ok(()) };
        let (path, _) = self.base.locator.locate(file.inode, &record).await?;
        let (shared, inode) = (self.base.shared.clone(), file.inode);
        let apply = move || {
            let (shared_file, stat) = open_same(&*shared, &path, inode, Access::Write)?;
            let size = learn_size(&*shared_file, &stat, record.stamp.size.max(start + 1))?;
            apply_space(&*shared_file, change, start..end, size.max(record.stamp.size))?;
            shared_file.stat().map(|stat| stat.stamp())
        };
        let stamp: Stamp = self.base.change_shared(inode, apply).await?;
        self.base.files.update(file, |state| state.record.stamp = stamp)
    }
}

/// Changes the space of the shared file. Its size stays: the flush sets it, with the bytes.
fn apply_space(file: &dyn SharedFile, change: SpaceChange, bytes: Range<u64>, size: u64) -> Result<()> {
    let length = bytes.end - bytes.start;
    // There is nothing to free behind the end, and a file system without hole punching need not be asked.
    if change != SpaceChange::Allocate && bytes.start < size {
        file.allocate(Allocate::Punch, bytes.start, length)?;
    }
    if change != SpaceChange::Punch {
        file.allocate(Allocate::Keep, bytes.start, length)?;
    }
    Ok(())
}
