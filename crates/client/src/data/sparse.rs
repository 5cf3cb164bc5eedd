//! Sparse files: punches holes, allocates space, and seeks data and holes.

use super::file::FileData;
use super::flush::Flusher;
use super::home::Home;
use super::homes::HomeClient;
use super::write::Writer;
use crate::replies::unexpected_reply;
use futures_util::future::try_join_all;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::unit::{Sought, SpaceChange, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{HomeMap, InodeId, Layout, MapEpoch, NodeId, Result};
use tameike_fabric::{Destination, join_calls, under_one_map};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Blocks of `st_blocks` that a file of this size takes without holes.
pub fn dense_blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK) * (BLOCK / 512)
}

/// Changes and queries the space of files.
pub(crate) struct SpaceClient {
    homes: Arc<HomeClient>,
    writer: Arc<Writer>,
    flusher: Arc<Flusher>,
}

impl SpaceClient {
    pub(super) fn new(homes: Arc<HomeClient>, writer: Arc<Writer>, flusher: Arc<Flusher>) -> Self {
        Self { homes, writer, flusher }
    }

    /// Allocates or punches space: sends dirty bytes, has `change_homes` change the homes, and drops this node's copies of bytes that
    /// became zeros.
    pub(crate) async fn change<T>(
        &self,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        change_homes: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.flusher.flush_new(file).await?;
        self.flusher.settle_all(file).await;
        let drop_old = || {
            if change != SpaceChange::Allocate {
                file.punch(&bytes);
            }
        };
        drop_old();
        let changed = change_homes.await?;
        // Also drop bytes that were read during the change.
        drop_old();
        Ok(changed)
    }

    /// Changes space at the homes of a file's units, then at the home of its inode. Fails with `ENOSPC` if a home is full.
    pub(crate) async fn change_at_homes(
        &self,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        self.writer.leave_inline(file).await?;
        let (inode, layout, Range { start, end }) = (file.inode, file.layout, bytes.clone());
        let request = || Request::Unit(UnitRequest::Space { inode, change, start, end, layout });
        under_one_map(self.homes.cluster(), |map| {
            file.add_unsynced(self.homes.of_bytes(file, bytes.clone()));
            let nodes = self.homes.nodes(&map, file, bytes.clone());
            let calls = nodes.into_iter().map(|(node, _)| Destination::Primary(node, map.epoch));
            join_calls(calls.map(|to| self.homes.ask(to, request())).collect::<Vec<_>>())
        })
        .await?;
        let end = if grows { bytes.end } else { 0 };
        let now = self.homes.runtime.now();
        let (version, _) = self.homes.commit(&Home::Inode, file.inode, (end, true), now).await?;
        file.changed_at(now);
        file.own_change(version.generation, version.inline);
        file.grown(version.size);
        Ok(())
    }

    /// Returns the first data or hole byte in `start..end`, according to the units' homes. It first sends this node's dirty bytes.
    pub(crate) async fn seek(
        &self,
        file: &Arc<FileData>,
        sought: Sought,
        start: u64,
        end: u64,
    ) -> Result<Option<u64>> {
        self.flusher.settle_all(file).await;
        if file.is_inline() {
            return Ok((sought == Sought::Data && start < end).then_some(start));
        }
        under_one_map(self.homes.cluster(), |map| self.seek_under(map, file, sought, start..end)).await
    }

    async fn seek_under(
        &self,
        map: Arc<HomeMap>,
        file: &FileData,
        sought: Sought,
        bytes: Range<u64>,
    ) -> Result<Option<u64>> {
        let (inode, layout, epoch) = (file.inode, file.layout, map.epoch);
        let ask = |node, start| async move {
            let request = Request::Unit(UnitRequest::Seek { inode, sought, start, layout });
            match self.homes.ask(Destination::Primary(node, epoch), request).await?.reply {
                Reply::Unit(UnitReply::Found { at, found }) => Ok((node, at, found)),
                other => Err(unexpected_reply(&other)),
            }
        };
        let first = self.homes.nodes(&map, file, bytes.clone()).into_iter().map(|(node, at)| ask(node, at));
        let mut places = try_join_all(first).await?;
        loop {
            let Some(place) = places.iter_mut().min_by_key(|(_, at, _)| *at) else { return Ok(None) };
            match *place {
                (_, at, _) if at >= bytes.end => return Ok(None),
                (_, at, true) => return Ok(Some(at)),
                (node, at, false) => *place = ask(node, at).await?,
            }
        }
    }

    /// Returns the file's space in blocks of `st_blocks`: the space at its homes and this node's unsent bytes. For a cached file, that of
    /// its dirty bytes.
    pub(crate) async fn usage(&self, inode: InodeId, layout: Layout) -> Result<u64> {
        let cluster = self.homes.cluster();
        let used = under_one_map(cluster, |map| {
            let nodes = map.primaries(cluster.unit_homes(layout, inode));
            try_join_all(nodes.into_iter().map(move |node| self.usage_at(node, map.epoch, inode)))
        });
        Ok(used.await?.into_iter().sum::<u64>() / 512)
    }

    async fn usage_at(&self, node: NodeId, epoch: MapEpoch, inode: InodeId) -> Result<u64> {
        let request = Request::Unit(UnitRequest::Usage { inode });
        match self.homes.ask(Destination::Primary(node, epoch), request).await?.reply {
            Reply::Unit(UnitReply::Usage(bytes)) => Ok(bytes),
            other => Err(unexpected_reply(&other)),
        }
    }
}
