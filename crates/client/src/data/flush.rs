//! Flush: what was written before is at its homes, safe, and known to the file's home.

use super::file::Uncommitted;
use super::{DataEngine, FileData, FileVersion};
use crate::vfs::OpenMode;
use event_listener::listener;
use futures_util::future::{try_join, try_join_all};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::wire::Request;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Generation, NodeId, Result};

impl FileData {
    /// How often the home was told that all that was written here before is at its place.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// The home knows that nothing of what was written here is on its way.
    pub fn count_commit(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }
}

impl DataEngine {
    /// Sends all writes acknowledged so far and tells the home; every later open on any node sees them.
    /// `durable`: they survive power loss, too. What went wrong with single writes is [`FileData::tell`]'s; the
    /// others reach their homes all the same.
    ///
    /// # Errors
    /// When the homes cannot be told; the next flush tries again.
    pub async fn flush(self: &Arc<Self>, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let _order = file.flushing.lock().await;
        let writes = {
            let mut state = file.state.lock();
            state.begin_commit();
            state.writes
        };
        self.settle(file, writes).await;
        let committing = {
            let state = file.state.lock();
            state.committing.filter(|_| state.in_units)
        };
        self.make_safe(file, committing, durable).await?;
        let mut state = file.state.lock();
        // It stays in sight until the home knows of it.
        state.committing = None;
        if state.writes == writes {
            state.in_units = false;
        }
        Ok(())
    }

    /// Flushes what came through a mapping after the last close: such bytes are told to nobody else. What goes
    /// wrong is logged, as no program is left to be told.
    pub async fn flush_mapped(self: &Arc<Self>, file: &Arc<FileData>, mode: OpenMode) {
        if !mode.write || file.is_flushed() {
            return;
        }
        if let Err(fault) = self.flush(file, false).await {
            log::error!("bytes written through a mapping of {} are not flushed: {fault}", file.inode);
        }
    }

    async fn make_safe(&self, file: &FileData, committing: Option<Uncommitted>, durable: bool) -> Result<()> {
        let home = file.home();
        if home.is_journaled() {
            self.sync_units(file, BTreeSet::new(), durable).await?;
        }
        let mut committed = None;
        if let Some(Uncommitted { end, time, holes }) = committing {
            let (version, attr) = self.commit(&home, file.inode, (end, holes), time).await?;
            file.count_commit();
            file.own_change(version.generation, version.inline);
            file.learn_attr(attr);
            committed = Some(version);
        }
        match durable {
            false => Ok(()),
            // The coordinator flushes what any node has written.
            true if home.is_journaled() => self.sync_home(&home, file.inode).await,
            true => {
                let (generation, ()) =
                    try_join(self.sync_all(file, committed), self.sync_home(&home, file.inode)).await?;
                file.state.lock().safe = Some(generation);
                Ok(())
            }
        }
    }

    /// Has the homes of units make safe what this node has written, and if others may have written since all of it was
    /// safe, what they have: an fsync is one of the whole file. The generation of which all is safe then.
    async fn sync_all(&self, file: &FileData, committed: Option<FileVersion>) -> Result<Generation> {
        let version = match committed {
            Some(version) => version,
            None => self.version(file.inode).await?,
        };
        let is_safe = file.state.lock().safe == Some(version.generation);
        let size = if is_safe { 0 } else { version.size };
        let others = self.turns(file, 0).into_iter().filter(|(_, start)| *start < size);
        self.sync_units(file, others.map(|(home, _)| home).collect(), true).await?;
        Ok(version.generation)
    }

    /// Has the homes that hold writes of this node make them safe, and some others.
    async fn sync_units(&self, file: &FileData, others: BTreeSet<NodeId>, durable: bool) -> Result<()> {
        let unsynced = std::mem::take(&mut file.state.lock().unsynced);
        let request = UnitRequest::Sync { inode: file.inode, durable };
        let homes = unsynced.union(&others);
        let synced = try_join_all(homes.map(|&home| self.ask(home, Request::Unit(request.clone())))).await;
        if synced.is_err() {
            file.state.lock().unsynced.extend(unsynced);
        }
        synced.map(drop)
    }

    /// Sends what has been written so far, and waits until it is at its homes.
    pub(super) async fn settle_all(self: &Arc<Self>, file: &Arc<FileData>) {
        let last = file.state.lock().writes;
        self.settle(file, last).await;
    }

    /// Sends what has been written up to write number `last`, and waits until it is at its homes. Writes that come
    /// meanwhile are not waited for: a program that writes on and on must not keep another from closing the file.
    async fn settle(self: &Arc<Self>, file: &Arc<FileData>, last: u64) {
        loop {
            listener!(file.changed => ended);
            let held_back: Vec<u64> = {
                let state = file.state.lock();
                let units = state.units.iter().filter(|(_, unit)| unit.holds_back(last));
                units.map(|(&index, _)| index).collect()
            };
            if held_back.is_empty() {
                return;
            }
            for index in held_back {
                self.send_unit(file, index);
            }
            ended.await;
        }
    }
}
