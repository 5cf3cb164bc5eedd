//! Flush of a file: sends dirty bytes to the units' homes, commits them to the file's home, and makes them durable.

use super::file::FileData;
use super::file::Uncommitted;
use super::home::FileVersion;
use super::homes::HomeClient;
use super::write::Writer;
use event_listener::listener;
use futures_util::future::try_join;
use std::collections::BTreeSet;
use std::sync::Arc;
use tameike_core::wire::Request;
use tameike_core::wire::unit::UnitRequest;
use tameike_core::{Generation, Result};
use tameike_fabric::{Destination, join_calls, under_one_map};

/// Flushes files.
pub(super) struct Flusher {
    homes: Arc<HomeClient>,
    writer: Arc<Writer>,
}

impl Flusher {
    pub(super) fn new(homes: Arc<HomeClient>, writer: Arc<Writer>) -> Self {
        Self { homes, writer }
    }

    pub(super) async fn flush(&self, file: &Arc<FileData>, durable: bool) -> Result<()> {
        let _order = file.begin_flush().await;
        let writes = file.begin_commit();
        self.settle(file, writes).await;
        self.persist(file, file.committing(), durable).await?;
        file.end_commit(writes);
        Ok(())
    }

    async fn persist(&self, file: &FileData, committing: Option<Uncommitted>, durable: bool) -> Result<()> {
        let home = file.home();
        if home.is_journaled() {
            self.sync_units(file, 0, durable).await?;
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
            // The coordinator flushes the writes of all nodes.
            true if home.is_journaled() => self.homes.sync_home(&home, file.inode).await,
            true => {
                let (generation, ()) =
                    try_join(self.sync_all(file, committed), self.homes.sync_home(&home, file.inode)).await?;
                file.set_durable(generation);
                Ok(())
            }
        }
    }

    /// Has the units' homes persist this node's writes. If other nodes may have written since the whole file was durable, the homes persist
    /// those writes too: fsync covers the whole file. Returns the generation that is then fully durable.
    async fn sync_all(&self, file: &FileData, committed: Option<FileVersion>) -> Result<Generation> {
        let version = match committed {
            Some(version) => version,
            None => self.homes.version(file.inode).await?,
        };
        let size = if file.is_durable(version.generation) { 0 } else { version.size };
        self.sync_units(file, size, true).await?;
        Ok(version.generation)
    }

    /// Has the homes that hold this node's writes, and those of the first `size` bytes, persist them.
    async fn sync_units(&self, file: &FileData, size: u64, durable: bool) -> Result<()> {
        let unsynced = file.take_unsynced();
        let request = UnitRequest::Sync { inode: file.inode, durable };
        let synced = under_one_map(self.homes.cluster(), |map| {
            let mut nodes: BTreeSet<_> = unsynced.iter().map(|&home| map.primary(home)).collect();
            nodes.extend(self.homes.nodes(&map, file, 0..size).into_iter().map(|(node, _)| node));
            let calls = nodes.into_iter().map(|node| Destination::Primary(node, map.epoch));
            join_calls(calls.map(|to| self.homes.ask(to, Request::Unit(request.clone()))).collect::<Vec<_>>())
        });
        let synced = synced.await;
        if synced.is_err() {
            file.add_unsynced(unsynced);
        }
        synced.map(drop)
    }

    /// Flushes the file if its home does not know of all writes yet.
    pub(super) async fn flush_new(&self, file: &Arc<FileData>) -> Result<()> {
        if file.newer().is_some() { self.flush(file, false).await } else { Ok(()) }
    }

    /// Sends all dirty bytes and waits until their homes have them.
    pub(super) async fn settle_all(&self, file: &Arc<FileData>) {
        self.settle(file, file.writes()).await;
    }

    /// Sends the writes up to number `last` and waits until their homes have them. It does not wait for later writes: a program that keeps
    /// writing must not block another one's close.
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
