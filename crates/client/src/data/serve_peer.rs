//! Peer cache server: sends bytes in this node's memory to other nodes.
//!
//! It serves only bytes that match the home's in the requested version, and whose checksum still holds; it drops corrupted ones. A quota on
//! bytes in flight to other nodes preserves the frames for this node's own use.

use super::counters::Counters;
use super::file::{AtRest, Served};
use super::file_table::FileTable;
use super::frames::FrameCache;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::client::ClientReply;
use tameike_core::{Generation, UnitId};
use tameike_io::{Payload, Quota};

/// Readers that may receive bytes of one unit at the same time. Further ones receive `Busy`.
const READERS_MAX: usize = 4;
/// One part in so many of a view's frames may be in flight to other nodes.
const SENT_PART: u32 = 4;

/// Serves bytes in memory to other nodes.
pub(super) struct PeerServer {
    files: Arc<FileTable>,
    frames: Arc<FrameCache>,
    /// Bytes in flight to other nodes.
    sent: Quota,
    counters: Arc<Counters>,
}

impl PeerServer {
    pub(super) fn new(files: Arc<FileTable>, frames: Arc<FrameCache>, counters: Arc<Counters>) -> Self {
        let sent = Quota::new((frames.share() / SENT_PART).max(1));
        Self { files, frames, sent, counters }
    }

    pub(super) fn serve(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> (ClientReply, Option<Payload>) {
        let not_held = (ClientReply::NotHeld, None);
        let pages = (range.end as usize).div_ceil(BLOCK_SIZE) - range.start as usize / BLOCK_SIZE;
        self.counters.requested.add(1);
        self.counters.requested_pages.add(pages);
        let Some(file) = self.files.find(unit.inode) else { return not_held };
        let admit = |readers: usize, bytes: Payload| {
            let is_busy = readers >= READERS_MAX || self.frames.is_wanted();
            if is_busy { None } else { self.sent.admit(bytes) }
        };
        let bytes = match file.serve_peer(unit.index, range, generation, admit) {
            Served::Bytes(bytes) => bytes,
            Served::NotHeld => return not_held,
            Served::Busy => return (ClientReply::Busy, None),
        };
        if bytes.is_damaged() {
            log::error!(
                "the memory of this node is faulty: bytes of {} fail their checksum; they are dropped and read again",
                unit.inode
            );
            self.counters.damaged.add(1);
            file.drop_damaged(unit.index);
            return not_held;
        }
        self.counters.delivered.add(1);
        self.counters.delivered_pages.add(pages);
        (ClientReply::Read, Some(bytes))
    }

    pub(super) fn at_rest(&self) -> Vec<AtRest> {
        let mut found = Vec::new();
        self.files.all().iter().for_each(|file| file.collect_at_rest(&mut found));
        found
    }
}
