//! Holes of files: making them, setting space aside, and finding data between them.

use super::homes::unexpected;
use super::{DataEngine, FileData, Home};
use futures_util::future::try_join_all;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::wire::unit::{Sought, SpaceChange, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{NodeId, Result};

const UNIT: u64 = UNIT_SIZE as u64;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Space of a file of this size without holes, in blocks of `st_blocks`.
pub fn dense_blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK) * (BLOCK / 512)
}

impl DataEngine {
    /// Where the units of a file lie from byte `start` on: each node with the first byte on it to be looked at.
    pub(super) fn turns(&self, file: &FileData, start: u64) -> Vec<(NodeId, u64)> {
        let first = start / UNIT;
        let nodes = self.cluster.unit_turns(file.layout, file.inode, first);
        nodes.into_iter().zip(first..).map(|(node, index)| (node, start.max(index * UNIT))).collect()
    }

    /// Sets space aside or gives it back: sends what was written before, has `tell` tell the homes, and drops what
    /// this node has of bytes that are zeros then.
    ///
    /// # Errors
    /// Those of `tell`.
    pub async fn change_space<T>(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        tell: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if file.newer().is_some() {
            self.flush(file, false).await?;
        }
        self.settle_all(file).await;
        let drop_old = || {
            if change != SpaceChange::Allocate {
                file.punch(&bytes);
            }
        };
        drop_old();
        let told = tell.await?;
        // Bytes that were read while the homes were at it go, too.
        drop_old();
        Ok(told)
    }

    /// Tells the homes of a file's units, then the home of its inode, of a change of space.
    ///
    /// # Errors
    /// `ENOSPC` when a home has no room to set aside.
    pub async fn tell_space(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        self.leave_inline(file).await?;
        let turns = self.turns(file, bytes.start);
        let step = turns.len() as u64;
        let asked = turns.iter().filter(|(_, start)| *start < bytes.end).map(|&(node, start)| {
            file.add_unsynced([node]);
            let request = UnitRequest::Space { inode: file.inode, change, start, end: bytes.end, step };
            self.ask(node, Request::Unit(request))
        });
        try_join_all(asked).await?;
        let end = if grows { bytes.end } else { 0 };
        let now = self.runtime.now();
        let (version, _) = self.commit(&Home::Inode, file.inode, (end, true), now).await?;
        file.changed_at(now);
        file.own_change(version.generation, version.inline);
        file.grown(version.size);
        Ok(())
    }

    /// The first byte of its kind from `start` on and before `end` that the homes of the file's units know of. What this
    /// node has written is sent first.
    ///
    /// # Errors
    /// When a home cannot be asked.
    pub async fn seek(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        sought: Sought,
        start: u64,
        end: u64,
    ) -> Result<Option<u64>> {
        self.settle_all(file).await;
        if file.is_inline() {
            return Ok((sought == Sought::Data && start < end).then_some(start));
        }
        let turns = self.turns(file, start);
        let step = turns.len() as u64;
        let ask = |node, start| async move {
            let request = UnitRequest::Seek { inode: file.inode, sought, start, step };
            let answer = self.ask(node, Request::Unit(request)).await?;
            match answer.reply {
                Reply::Unit(UnitReply::Found { at, found }) => Ok((node, at, found)),
                _ => Err(unexpected(&answer)),
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

    /// Space that the file takes, in blocks of `st_blocks`: what its homes say, and what waits here to be sent. Of a
    /// cached file, that of its dirty bytes.
    ///
    /// # Errors
    /// When a home cannot be asked.
    pub async fn usage(&self, inode: tameike_core::InodeId, layout: tameike_core::Layout) -> Result<u64> {
        let asked = self.cluster.unit_homes(layout, inode).into_iter().map(|node| async move {
            let answer = self.ask(node, Request::Unit(UnitRequest::Usage { inode })).await?;
            match answer.reply {
                Reply::Unit(UnitReply::Usage(bytes)) => Ok(bytes),
                _ => Err(unexpected(&answer)),
            }
        });
        let at_homes: u64 = try_join_all(asked).await?.into_iter().sum();
        Ok(at_homes / 512)
    }
}
