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
use tameike_core::{InodeId, Layout, Result};

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
        let turns = self.homes.turns(file, bytes.start);
        let step = turns.len() as u64;
        let calls = turns.iter().filter(|(_, start)| *start < bytes.end).map(|&(node, start)| {
            file.add_unsynced([node]);
            let request = UnitRequest::Space { inode: file.inode, change, start, end: bytes.end, step };
            self.homes.ask(node, Request::Unit(request))
        });
        try_join_all(calls).await?;
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
        let turns = self.homes.turns(file, start);
        let step = turns.len() as u64;
        let ask = |node, start| async move {
            let request = UnitRequest::Seek { inode: file.inode, sought, start, step };
            let answer = self.homes.ask(node, Request::Unit(request)).await?;
            match answer.reply {
                Reply::Unit(UnitReply::Found { at, found }) => Ok((node, at, found)),
                other => Err(unexpected_reply(&other)),
            }
        };
        let first = turns.into_iter().filter(|(_, at)| *at < end).map(|(node, at)| ask(node, at));
        let mut places = try_join_all(first).await?;
        loop {
            let Some(place) = places.iter_mut().min_by_key(|(_, at, _)| *at) else { return Ok(None) };
            match *place {
                (_, at, _) if at >= end => return Ok(None),
                (_, at, true) => return Ok(Some(at)),
                (node, at, false) => *place = ask(node, at).await?,
            }
        }
    }

    /// Returns the file's space in blocks of `st_blocks`: the space at its homes and this node's unsent bytes. For a cached file, that of
    /// its dirty bytes.
    pub(crate) async fn usage(&self, inode: InodeId, layout: Layout) -> Result<u64> {
        let calls = self.homes.cluster().unit_homes(layout, inode).into_iter().map(|node| async move {
            let answer = self.homes.ask(node, Request::Unit(UnitRequest::Usage { inode })).await?;
            match answer.reply {
                Reply::Unit(UnitReply::Usage(bytes)) => Ok(bytes),
                other => Err(unexpected_reply(&other)),
            }
        });
        let at_homes: u64 = try_join_all(calls).await?.into_iter().sum();
        Ok(at_homes / 512)
    }
}
