//! Divides an agent's memory for file data into pools. Their sizes are fixed at start, so that a use of frames waits only for
//! frames of the same use.

use crate::fuse::WriteBacklog;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Errno, Fault, Result};
use tameike_io::{Pool, Slab};
use tameike_ring::frames::FrameTable;

/// Smallest number of frames that leaves at least 3 for each pool.
const FRAMES_MIN: u32 = 48;
/// Smallest memory for frames, in bytes.
pub const MEMORY_MIN: u64 = FRAMES_MIN as u64 * UNIT_SIZE as u64;

/// One part in this many of a view's share buffers writes that wait for frames.
const BACKLOG_PART: u32 = 8;

/// The slab of an agent, its pools, and the buffers beside it.
pub struct Memory {
    /// All frames.
    pub slab: Arc<Slab>,
    /// Payloads of incoming requests.
    pub requests: Pool,
    /// Payloads of replies for which the caller supplied no frame, and of those fetched by grant.
    pub replies: Pool,
    /// Replies to reads of units, and inline content that moves to a unit.
    pub reads: Pool,
    /// Flushes to the shared file system.
    pub flushes: Pool,
    /// Merges and rewrites of units: held during disk operations only.
    pub scratch: Pool,
    /// Bytes that are sent from the store to backups; empty if the homes of the job have no replicas.
    pub copies: Pool,
    /// Write-behind and readahead of the job-shared view.
    pub shared_view: Pool,
    /// Write-behind and readahead of the cache view; empty without one.
    pub cache_view: Pool,
    /// Grants of frames to programs. `None` if the system cannot map the slab read-only for them.
    pub frame_grants: Option<Arc<FrameTable>>,
    /// Writes that wait for a frame of `shared_view`.
    pub shared_backlog: WriteBacklog,
    /// Writes that wait for a frame of `cache_view`.
    pub cache_backlog: WriteBacklog,
    /// Memory for the pages of regions, in bytes.
    pub regions: u64,
}

impl Memory {
    /// Divides at most `bytes`. Without a cache view, the job-shared view gets the share of both; without replicas, the views get the share
    /// of copies. `regions` bytes are for regions.
    ///
    /// # Errors
    /// `ENOMEM` if `bytes` is too small, or the system refuses.
    pub fn new(bytes: u64, has_cache_view: bool, has_replicas: bool, regions: u64) -> Result<Self> {
        let count = u32::try_from(bytes / UNIT_SIZE as u64).unwrap_or(u32::MAX);
        if count < FRAMES_MIN {
            let message =
                format!("an agent needs at least {MEMORY_MIN} bytes for frames, not {bytes}: raise --memory");
            return Err(Fault::new(Errno::ENOMEM, message));
        }
        let part = count / 16;
        let server = [2 * part, 2 * part, 2 * part, part, part, if has_replicas { part } else { 0 }];
        let left = count - server.iter().sum::<u32>();
        let views = if has_cache_view { [left / 2, left / 2] } else { [left, 0] };
        let backlogs = views.map(|share| share / BACKLOG_PART);
        let slab = Slab::new(count - backlogs.iter().sum::<u32>())
            .map_err(|error| Fault::from_os("mapping the frames", &error))?;
        let frame_grants = FrameTable::new(&slab)
            .inspect_err(|error| log::info!("programs get no grants of frames: {error}"));
        let frame_grants = frame_grants.ok().map(Arc::new);
        let [requests, replies, reads, flushes, scratch, copies] = server.map(|share| slab.pool(share));
        let (shared_view, cache_view) =
            (slab.pool(views[0] - backlogs[0]), slab.pool(views[1] - backlogs[1]));
        let [shared_backlog, cache_backlog] =
            backlogs.map(|share| WriteBacklog::new(share as usize * UNIT_SIZE));
        Ok(Self {
            slab,
            requests,
            replies,
            reads,
            flushes,
            scratch,
            copies,
            shared_view,
            cache_view,
            frame_grants,
            shared_backlog,
            cache_backlog,
            regions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_the_slab() {
        let sizes = [FRAMES_MIN, 63, 64, 100, 257];
        for (frames, has_cache_view) in sizes.into_iter().flat_map(|frames| [(frames, true), (frames, false)])
        {
            let bytes = u64::from(frames) * UNIT_SIZE as u64;
            let memory = Memory::new(bytes, has_cache_view, true, 0).expect("enough frames");
            let pools = [
                &memory.requests,
                &memory.replies,
                &memory.reads,
                &memory.flushes,
                &memory.scratch,
                &memory.copies,
                &memory.shared_view,
            ];
            assert!(pools.iter().all(|pool| pool.share() >= 3));
            let cache_view = memory.cache_view.share();
            assert_eq!(cache_view, if has_cache_view { memory.shared_view.share() } else { 0 });
            let (_, slab) = memory.slab.usage();
            assert!(pools.iter().map(|pool| pool.share()).sum::<u32>() + cache_view <= slab);
            let backlogs = memory.shared_backlog.free() + memory.cache_backlog.free();
            assert!(memory.shared_backlog.free() >= UNIT_SIZE);
            assert!(slab as usize * UNIT_SIZE + backlogs <= frames as usize * UNIT_SIZE);
        }
        assert_eq!(Memory::new(1 << 20, true, true, 0).err().map(|fault| fault.errno), Some(Errno::ENOMEM));
    }
}
