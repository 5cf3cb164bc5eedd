//! Flush: what was written before is at its homes, safe, and known to the file's home.

use super::{DataEngine, FileData};
use crate::vfs::OpenMode;
use event_listener::listener;
use futures_util::future::try_join_all;
use std::sync::Arc;
use tameike_core::wire::Request;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{NodeId, Result, Timestamp};

impl DataEngine {
    /// Sends all writes acknowledged so far and tells the home; every later open on any node sees them.
    /// `durable`: they survive power loss, too. What went wrong with single writes is [`FileData::tell`]'s; the
    /// others reach their homes all the same.
    ///
    /// # Errors
    /// When the homes cannot be told; the next flush tries again.
    pub async fn flush(self: &Arc<Self>, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let _order = file.flushing.lock().await;
        let settled = self.settle(file).await;
        let (uncommitted, holes) = {
            let state = file.state.lock();
            (state.uncommitted.filter(|_| state.in_units), state.holes)
        };
        self.make_safe(file, (uncommitted, holes), durable).await?;
        let mut state = file.state.lock();
        // It stays in sight until the home was told after all of it had come to the units: who was told of a write that
        // was still under way has seen zeros in its place, and must be told of another version.
        if state.writes == settled {
            (state.uncommitted, state.in_units, state.holes) = (None, false, false);
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

    async fn make_safe(
        &self,
        file: &FileData,
        (uncommitted, holes): (Option<(u64, Timestamp)>, bool),
        durable: bool,
    ) -> Result<()> {
        let home = file.home();
        if durable || home.is_journaled() {
            let unsynced = std::mem::take(&mut file.state.lock().unsynced);
            if let Err(fault) = self.sync_units(file, &unsynced, durable).await {
                file.state.lock().unsynced.extend(unsynced);
                return Err(fault);
            }
        }
        if let Some((end, time)) = uncommitted {
            let version = self.commit(&home, file.inode, (end, holes), time).await?;
            file.own_change(version.generation, version.inline);
        }
        if durable {
            self.sync_home(&home, file.inode).await?;
        }
        Ok(())
    }

    async fn sync_units(
        &self,
        file: &FileData,
        homes: &std::collections::BTreeSet<NodeId>,
        durable: bool,
    ) -> Result<()> {
        let request = UnitRequest::Sync { inode: file.inode, durable };
        try_join_all(homes.iter().map(|&home| self.ask(home, Request::Unit(request.clone())))).await.map(drop)
    }

    /// Sends what has been written so far, and waits until it is at its homes. Writes that come meanwhile are
    /// not waited for: a program that writes on and on must not keep another from closing the file. Gives the
    /// number of the last write that was.
    pub(super) async fn settle(self: &Arc<Self>, file: &Arc<FileData>) -> u64 {
        let last = file.state.lock().writes;
        loop {
            listener!(file.changed => ended);
            let held_back: Vec<u64> = {
                let state = file.state.lock();
                let units = state.units.iter().filter(|(_, unit)| unit.holds_back(last));
                units.map(|(&index, _)| index).collect()
            };
            if held_back.is_empty() {
                return last;
            }
            for index in held_back {
                self.send_unit(file, index);
            }
            ended.await;
        }
    }
}
