//! Flush of a file: sends what was written before to its homes, commits it to the file's home, and makes it durable.

use super::file::FileData;
use super::file::Uncommitted;
use super::home::FileVersion;
use super::homes::HomeClient;
use super::write::Writer;
use event_listener::listener;
use futures_util::future::{try_join, try_join_all};
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::wire::Request;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Generation, NodeId, Result};

/// Flushes of files.
pub(super) struct Flusher {
    homes: Arc<HomeClient>,
    writer: Arc<Writer>,
}

impl Flusher {
    pub(super) fn new(homes: Arc<HomeClient>, writer: Arc<Writer>) -> Self {
        Self { homes, writer }
    }

    /// Sends all writes acknowledged so far and commits them to the home; every later open on any node sees them.
    /// `durable`: they survive power loss, too. Failures of single writes are reported by [`FileData::report_faults`]; the
    /// others reach their homes all the same.
    ///
    /// # Errors
    /// When the homes cannot be reached; the next flush tries again.
    pub(super) async fn flush(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let _order = file.begin_flush().await;
        let writes = file.begin_commit();
        self.settle(file, writes).await;
        self.persist(file, file.committing(), durable).await?;
        file.end_commit(writes);
        Ok(())
    }

    /// Flushes, and logs a failure.
    pub(super) async fn flush_or_log(&self, file: &Arc<FileData>) {
        if let Err(fault) = self.flush(file, false).await {
            log::error!("bytes written through a mapping of {} are not flushed: {fault}", file.inode);
        }
    }

    async fn persist(&self, file: &FileData, committing: Option<Uncommitted>, durable: bool) -> Result<()> {
        let home = file.home();
        if home.is_journaled() {
            self.sync_units(file, BTreeSet::new(), durable).await?;
        }
        let mut committed = None;
        if let Some(Uncommitted { end, time, holes }) = committing {
            let (version, attr) = self.homes.commit(&home, file.inode, (end, holes), time).await?;
            file.count_commit();
            file.own_change(version.generation, version.inline);
            file.learn_attr(attr);
            committed = Some(version);
        }
        match durable {
            false => Ok(()),
            // The coordinator flushes what any node has written.
            true if home.is_journaled() => self.homes.sync_home(&home, file.inode).await,
            true => {
                let (generation, ()) =
                    try_join(self.sync_all(file, committed), self.homes.sync_home(&home, file.inode)).await?;
                file.set_durable(generation);
                Ok(())
            }
        }
    }

    /// Has the homes of units persist what this node has written, and if others may have written since all of it was
    /// durable, what they have: an fsync is one of the whole file. The generation of which all is durable then.
    async fn sync_all(&self, file: &FileData, committed: Option<FileVersion>) -> Result<Generation> {
        let version = match committed {
            Some(version) => version,
            None => self.homes.version(file.inode).await?,
        };
        let size = if file.is_durable(version.generation) { 0 } else { version.size };
        let others = self.homes.turns(file, 0).into_iter().filter(|(_, start)| *start < size);
        self.sync_units(file, others.map(|(home, _)| home).collect(), true).await?;
        Ok(version.generation)
    }

    /// Has the homes that hold writes of this node persist them, and some others.
    async fn sync_units(&self, file: &FileData, others: BTreeSet<NodeId>, durable: bool) -> Result<()> {
        let unsynced = file.take_unsynced();
        let request = UnitRequest::Sync { inode: file.inode, durable };
        let homes = unsynced.union(&others);
        let synced =
            try_join_all(homes.map(|&home| self.homes.ask(home, Request::Unit(request.clone())))).await;
        if synced.is_err() {
            file.add_unsynced(unsynced);
        }
        synced.map(drop)
    }

    /// Flushes the file, if its home does not know of all writes yet.
    pub(super) async fn flush_new(&self, file: &Arc<FileData>) -> Result<()> {
        if file.newer().is_some() { self.flush(file, false).await } else { Ok(()) }
    }

    /// Sends what has been written so far, and waits until it is at its homes.
    pub(super) async fn settle_all(&self, file: &Arc<FileData>) {
        self.settle(file, file.writes()).await;
    }

    /// Sends what has been written up to write number `last`, and waits until it is at its homes. Writes that come
    /// meanwhile are not waited for: a program that writes on and on must not keep another from closing the file.
    async fn settle(&self, file: &Arc<FileData>, last: u64) {
        loop {
            listener!(file.changed() => ended);
            let held_back = file.held_back(last);
            if held_back.is_empty() {
                return;
            }
            for index in held_back {
                self.writer.send_unit(file, index);
            }
            ended.await;
        }
    }
}
