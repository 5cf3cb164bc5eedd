//! Frees space for writers while the cache area is full of dirty bytes: it flushes files.
//!
//! The store refuses a write without space, and its sender waits with a request that holds no frame. The flush may need messages that are
//! queued behind writes on a connection, and the agent reads those only while frames are free.

use super::UnitService;
use event_listener::{Event, listener};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::wire::Request;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::{Errno, Fault, HomeSet, InodeId, Result, View};

/// Number of changes in flight that allocate blocks. Their blocks are neither clean nor dirty until the change is logged.
#[derive(Default)]
pub(super) struct Allocations {
    count: AtomicUsize,
    ended: Event,
}

/// A change in flight, until dropped.
pub(super) struct Allocation<'a>(&'a Allocations);

impl Allocations {
    pub(super) fn begin(&self) -> Allocation<'_> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Allocation(self)
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify(usize::MAX);
    }
}

impl UnitService {
    /// Returns when the writer should retry: this node has space, and so have backups that refused its change.
    pub(super) async fn free_space(&self, attempt: u32) -> Result<()> {
        self.free_own_space(attempt).await?;
        self.parts.copies.free_space(attempt).await
    }

    /// Frees space of this node. One request at a time flushes files, and the others wait for it.
    async fn free_own_space(&self, attempt: u32) -> Result<()> {
        let _only = self.freeing.lock().await;
        // On the first attempt, another request may have freed space meanwhile. On later ones the store has refused a write although it
        // reported space: more must be flushed.
        if attempt == 0 && self.has_space() {
            return Ok(());
        }
        let (mut refusal, mut after) = (None, InodeId(0));
        listener!(self.allocations.ended => ended);
        let were_others = self.allocations.count.load(Ordering::Acquire) > 0;
        loop {
            let inodes = self.parts.extents.dirty_inodes(&HomeSet::All, after)?;
            let Some(&last) = inodes.last() else { break };
            for inode in inodes {
                let coordinator = self.parts.cluster.inode_home(inode);
                let request = Request::Cache(CacheRequest::Writeback { inode });
                match self.parts.rpc.call(coordinator.into(), request, None, None).await {
                    Ok(_) if self.has_space() => return Ok(()),
                    Ok(_) => {}
                    Err(fault) => refusal = Some(fault),
                }
            }
            after = last;
        }
        match refusal {
            _ if self.has_space() => Ok(()),
            // No dirty file is left. Writes in flight take space that the next attempt can free.
            None => {
                if were_others {
                    ended.await;
                }
                Ok(())
            }
            Some(fault) => Err(Fault::new(
                Errno::ENOSPC,
                format!("the cache area is full and cannot be flushed to the shared file system: {fault}"),
            )),
        }
    }

    fn has_space(&self) -> bool {
        self.parts.extents.wait_for_space(View::Cache).now_or_never().is_some()
    }
}
