//! How an agent's memory for file data is shared out. The shares are fixed at start, so that each use waits only
//! for itself.

use crate::fuse::WaitingRoom;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Errno, Fault, Result};
use tameike_io::{Pool, Slab};
use tameike_ring::frames::FrameTable;

/// Fewest frames with which every use has some.
const FRAMES_MIN: u32 = 48;
/// Least memory for frames, in bytes.
pub const MEMORY_MIN: u64 = FRAMES_MIN as u64 * UNIT_SIZE as u64;

/// Of a view's share, one part in so many is room for writes that wait for its frames.
const WAITING_PART: u32 = 8;

/// The slab of an agent and its shares, and the memory that is set aside beside it.
pub struct Memory {
    /// All frames.
    pub slab: Arc<Slab>,
    /// Payloads of requests that come in.
    pub requests: Pool,
    /// Payloads of replies without a frame set aside, and those fetched by grant.
    pub replies: Pool,
    /// Answers to reads of units, and inline content on its way to a unit.
    pub reads: Pool,
    /// Flushes to the shared file system.
    pub flushes: Pool,
    /// Merging and rewriting of units: held during operations of the disk only.
    pub scratch: Pool,
    /// Write-behind and read-ahead of the job-shared view.
    pub shared_view: Pool,
    /// Write-behind and read-ahead of the cache view; without frames where there is none.
    pub cache_view: Pool,
    /// Which frames programs read; none where the system would let them write there, too.
    pub lent: Option<Arc<FrameTable>>,
    /// Writes that wait for a frame of `shared_view`.
    pub shared_waiting: WaitingRoom,
    /// Writes that wait for a frame of `cache_view`.
    pub cache_waiting: WaitingRoom,
}

impl Memory {
    /// At most `bytes`, shared out. Where there is no cache view, the job-shared view has the share of both.
    ///
    /// # Errors
    /// `ENOMEM` when `bytes` is too little, or the system refuses.
    pub fn new(bytes: u64, has_cache_view: bool) -> Result<Self> {
        let count = u32::try_from(bytes / UNIT_SIZE as u64).unwrap_or(u32::MAX);
        if count < FRAMES_MIN {
            let message =
                format!("an agent needs at least {MEMORY_MIN} bytes for frames, not {bytes}: raise --memory");
            return Err(Fault::new(Errno::ENOMEM, message));
        }
        let part = count / 16;
        let server = [2 * part, 2 * part, 2 * part, part, part];
        let left = count - server.iter().sum::<u32>();
        let views = if has_cache_view { [left / 2, left / 2] } else { [left, 0] };
        let waiting = views.map(|share| share / WAITING_PART);
        let slab = Slab::new(count - waiting.iter().sum::<u32>())
            .map_err(|error| Fault::from_os("mapping the frames", &error))?;
        let lent = FrameTable::new(&slab).inspect_err(|error| log::info!("no frames are lent: {error}"));
        let lent = lent.ok().map(Arc::new);
        let [requests, replies, reads, flushes, scratch] = server.map(|share| slab.pool(share));
        let (shared_view, cache_view) = (slab.pool(views[0] - waiting[0]), slab.pool(views[1] - waiting[1]));
        let [shared_waiting, cache_waiting] =
            waiting.map(|share| WaitingRoom::new(share as usize * UNIT_SIZE));
        Ok(Self {
            slab,
            requests,
            replies,
            reads,
            flushes,
            scratch,
            shared_view,
            cache_view,
            lent,
            shared_waiting,
            cache_waiting,
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
            let memory = Memory::new(bytes, has_cache_view).expect("enough frames");
            let pools = [
                &memory.requests,
                &memory.replies,
                &memory.reads,
                &memory.flushes,
                &memory.scratch,
                &memory.shared_view,
            ];
            assert!(pools.iter().all(|pool| pool.share() >= 3));
            let cache_view = memory.cache_view.share();
            assert_eq!(cache_view, if has_cache_view { memory.shared_view.share() } else { 0 });
            let (_, slab) = memory.slab.usage();
            assert!(pools.iter().map(|pool| pool.share()).sum::<u32>() + cache_view <= slab);
            // What waits has its own part.
            let waiting = memory.shared_waiting.free() + memory.cache_waiting.free();
            assert!(memory.shared_waiting.free() >= UNIT_SIZE);
            assert!(slab as usize * UNIT_SIZE + waiting <= frames as usize * UNIT_SIZE);
        }
        assert_eq!(Memory::new(1 << 20, true).err().map(|fault| fault.errno), Some(Errno::ENOMEM));
    }
}
