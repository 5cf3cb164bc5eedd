//! A file gets a new size: everywhere, or not at all as far as anybody can see.

use super::CacheService;
use super::files::File;
use crate::ending::learn_size;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, FILE_SIZE_MAX, UNIT_SIZE};
use tameike_core::wire::cache::CacheState;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Errno, InodeId, Result, Timestamp};
use tameike_io::shared::{Access, open_same};

impl CacheService {
    pub(super) async fn truncate(&self, inode: InodeId, size: u64, now: Timestamp) -> Result<CacheState> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let file = self.known(inode)?;
        let _flush = file.flush.lock().await;
        self.finish_cut(&file).await?;
        let before = file.state().record.clone();
        if before.removed {
            return Ok(before.state(None));
        }
        let mut changes = 0;
        // The shared file is cut first: what is read from it afterwards cannot bring cut bytes back. The record
        // says what is being done, so that a new life of this agent ends it.
        file.update(&self.journal, |state| {
            state.changes += 1;
            changes = state.changes;
            let record = &mut state.record;
            record.reach_end();
            let has_space = record.sparse && size <= record.size;
            record.cut = (size < record.size || size < record.stamp.size || has_space).then_some(size);
            record.generation = record.generation.next();
            record.sparse = size > 0 && (record.sparse || size > record.size);
            (record.size, record.mtime) = (size, now);
            (record.dirty, record.journaled) = (true, true);
            // What is written from nothing is whole again.
            record.cut_off &= size > 0;
        })?;
        self.journal.sync(false).await?;
        if let Err(fault) = self.cut_shared(&file).await {
            file.update(&self.journal, |state| {
                let is_alone = state.changes == changes;
                let record = &mut state.record;
                (record.cut, record.sparse) = (None, record.sparse || before.sparse);
                // A version that somebody may have learnt of does not come again.
                record.generation = record.generation.next();
                if is_alone {
                    (record.size, record.mtime, record.dirty) = (before.size, before.mtime, before.dirty);
                } else {
                    record.size = record.size.max(before.size);
                }
            })?;
            return Err(fault);
        }
        self.mark_dirty(inode);
        self.finish_cut(&file).await?;
        let state = file.state().record.state(None);
        Ok(state)
    }

    /// Ends a cut, or a change of space, that the record speaks of. The file's flush lock is held.
    pub(super) async fn finish_cut(&self, file: &Arc<File>) -> Result<()> {
        self.finish_space(file).await?;
        let Some(size) = file.state().record.cut else { return Ok(()) };
        self.cut_shared(file).await?;
        let request = UnitRequest::Truncate { inode: file.inode, size };
        let homes = self.homes_reached(file.inode, &file.state().record);
        self.ask_units(homes, &request).await?;
        if file.state().record.interrupted {
            // A flush that was given up may have written beyond the cut meanwhile.
            self.cut_shared(file).await?;
        }
        self.journal.drop_digests(file.inode, size / UNIT_SIZE as u64..u64::MAX)?;
        file.update(&self.journal, |state| {
            state.record.cut = None;
            // As after a change of space.
            state.record.generation = state.record.generation.next();
        })
    }

    /// Cuts the shared file, if it is longer than the record says it is to be.
    async fn cut_shared(&self, file: &Arc<File>) -> Result<()> {
        let record = file.state().record.clone();
        let Some(size) = record.cut else { return Ok(()) };
        let (path, _) = self.locate(file.inode, &record).await?;
        let (shared, inode) = (self.parts.shared.clone(), file.inode);
        let cut = move || {
            let (shared_file, stat) = open_same(&*shared, &path, inode, Access::Write)?;
            // What this machine remembers to be shorter may have bytes to cut all the same.
            let (blocks, known) = (stat.blocks, record.stamp.size);
            let end = learn_size(&*shared_file, &stat, known.max(size + 1))?.max(known);
            // Space may be set aside behind the end.
            let has_more = blocks * 512 > end.next_multiple_of(BLOCK_SIZE as u64);
            if end > size || has_more {
                shared_file.truncate(size.min(end))?;
            }
            shared_file.stat().map(|stat| stat.stamp())
        };
        let stamp = self.parts.runtime.block(cut).await?;
        file.update(&self.journal, |state| state.record.stamp = stamp)
    }
}
