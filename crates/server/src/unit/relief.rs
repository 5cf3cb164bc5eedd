//! Room for writers when the cache area is full of dirty bytes: files are flushed while the writers wait.
//!
//! A write that finds no room is refused, and its sender waits with a request of its own, which holds no frame: the flush
//! may need messages that stand behind writes on a connection, and those are read only while there are frames.

use super::UnitService;
use event_listener::{Event, listener};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::wire::Request;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::{Errno, Fault, InodeId, Result, View};

/// Changes in flight that take blocks, which are neither clean nor dirty until the change is logged.
#[derive(Default)]
pub(super) struct Takers {
    count: AtomicUsize,
    ended: Event,
}

/// One change in flight, until dropped.
pub(super) struct Taker<'a>(&'a Takers);

impl Takers {
    pub(super) fn begin(&self) -> Taker<'_> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Taker(self)
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify(usize::MAX);
    }
}

impl UnitService {
    /// Ends when a writer should try again: the cache area has room. One writer at a time has files flushed,
    /// the others wait for it.
    pub(super) async fn make_room(&self, attempt: u32) -> Result<()> {
        let _only = self.relief.lock().await;
        // On the first attempt another writer may have made room meanwhile. Later the store has refused a write
        // in spite of what it said, so that more must go.
        if attempt == 0 && self.has_room() {
            return Ok(());
        }
        let (mut refusal, mut after) = (None, InodeId(0));
        listener!(self.takers.ended => ended);
        let were_others = self.takers.count.load(Ordering::Acquire) > 0;
        loop {
            let inodes = self.parts.extents.dirty_inodes(after)?;
            let Some(&last) = inodes.last() else { break };
            for inode in inodes {
                let coordinator = self.parts.cluster.inode_home(inode);
                let request = Request::Cache(CacheRequest::Writeback { inode });
                match self.parts.rpc.call(coordinator, request, None, None).await {
                    Ok(_) if self.has_room() => return Ok(()),
                    Ok(_) => {}
                    Err(fault) => refusal = Some(fault),
                }
            }
            after = last;
        }
        match refusal {
            _ if self.has_room() => Ok(()),
            // Everything was flushed. What others are writing takes room that the next attempt can make.
            None => {
                if were_others {
                    ended.await;
                }
                Ok(())
            }
            Some(fault) => Err(Fault::new(
                Errno::ENOSPC,
                format!("the cache area is full and the shared file system takes no more of it: {fault}"),
            )),
        }
    }

    fn has_room(&self) -> bool {
        self.parts.extents.wait_for_space(View::Cache).now_or_never().is_some()
    }
}
