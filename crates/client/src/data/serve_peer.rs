//! Peer cache of this node: serves bytes that it has in memory to other nodes.
//!
//! Bytes are served as their home has them, in the version that was requested, and as they came here: what has changed by itself is
//! dropped. What is in flight to others keeps few frames from serving this node.

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

/// Readers that are sent bytes of one unit at the same time. More are told that the node is busy.
const READERS_MAX: usize = 4;
/// Of the frames of a view, one in so many may be on its way to other nodes.
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

    /// Answers another node's request: bytes of a unit, if this node has them in memory as their home has them in this version of the file.
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
                "memory of this node is faulty: bytes of {} have changed in it by themselves, and are read anew",
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

    /// All bytes in memory that their homes have, too, for who examines memory.
    pub(super) fn at_rest(&self) -> Vec<AtRest> {
        let mut found = Vec::new();
        self.files.all().iter().for_each(|file| file.collect_at_rest(&mut found));
        found
    }
}
