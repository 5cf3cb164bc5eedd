//! Room for writers when the cache area is full of dirty bytes: files are flushed while the writers wait.
//!
//! A write that finds no room is refused, and its sender waits with a request of its own, which holds no frame: the flush
//! may need messages that stand behind writes on a connection, and those are read only while there are frames.

use super::UnitService;
use futures_util::FutureExt;
use tameike_core::wire::Request;
use tameike_core::wire::cache::CacheRequest;
use tameike_core::{Errno, Fault, InodeId, Result, View};

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
            // Everything was flushed, and others have written since: the store says whether that leaves room.
            None => Ok(()),
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
