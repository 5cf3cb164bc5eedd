//! Flush: what was written before is at its homes, safe, and known to the file's home.

use super::{DataEngine, FileData};
use event_listener::listener;
use futures_util::future::try_join_all;
use std::sync::Arc;
use tameike_core::wire::Request;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{NodeId, Result, Timestamp};

impl DataEngine {
    /// Sends all writes acknowledged so far and tells the home; every later open on any node sees them.
    /// `durable`: they survive power loss, too.
    ///
    /// # Errors
    /// What went wrong with any write since the last flush; it is told once.
    pub async fn flush(self: &Arc<Self>, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let _order = file.flushing.lock().await;
        self.settle(file).await;
        let (fault, uncommitted) = {
            let mut state = file.state.lock();
            (state.fault.take(), state.uncommitted.take())
        };
        if let Some(fault) = fault {
            return Err(fault);
        }
        let flushed = self.make_safe(file, uncommitted, durable).await;
        if flushed.is_err() {
            let mut state = file.state.lock();
            state.uncommitted = later(state.uncommitted, uncommitted);
        }
        flushed
    }

    async fn make_safe(
        &self,
        file: &FileData,
        uncommitted: Option<(u64, Timestamp)>,
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
        // Inline content went to the home together with its size.
        if let Some((end, time)) = uncommitted.filter(|_| !file.is_inline()) {
            let version = self.commit(&home, file.inode, end, time).await?;
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

    /// Sends everything dirty and waits until nothing is under way.
    pub(super) async fn settle(self: &Arc<Self>, file: &Arc<FileData>) {
        loop {
            listener!(file.changed => ended);
            let dirty: Vec<u64> = {
                let state = file.state.lock();
                state
                    .units
                    .iter()
                    .filter(|(_, unit)| !unit.dirty.is_empty())
                    .map(|(&index, _)| index)
                    .collect()
            };
            for index in &dirty {
                self.send_unit(file, *index);
            }
            if file.is_settled() {
                return;
            }
            ended.await;
        }
    }
}

fn later(a: Option<(u64, Timestamp)>, b: Option<(u64, Timestamp)>) -> Option<(u64, Timestamp)> {
    match (a, b) {
        (Some((end_a, time_a)), Some((end_b, time_b))) => Some((end_a.max(end_b), time_a.max(time_b))),
        (a, b) => a.or(b),
    }
}
