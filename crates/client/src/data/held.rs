//! What other nodes are given of what this one has in memory.
//!
//! Bytes are given as their home has them, in the version that was asked for, and as they came here: what has changed by itself is
//! dropped. What is under way to others keeps few frames from serving this node.

use super::unit::UnitFrame;
use super::{DataEngine, FileData};
use std::ops::Range;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::client::ClientReply;
use tameike_core::{Generation, UnitId};
use tameike_io::Payload;

/// Readers that are sent bytes of one unit at the same time. More are told that the node is busy.
const READERS_MAX: usize = 4;
/// Of the frames of a view, one in so many may be on its way to other nodes.
const SENT_PART: u32 = 4;

/// Bytes that are in memory as their home has them.
pub struct AtRest {
    /// Of which unit.
    pub unit: UnitId,
    /// In which version of the file.
    pub generation: Generation,
    /// They.
    pub bytes: Payload,
}

/// Frames of a view with so many that may be on their way to other nodes.
pub(super) fn sent_max(frames: u32) -> u32 {
    (frames / SENT_PART).max(1)
}

impl DataEngine {
    /// Another node's question: bytes of a unit, if this node has them in memory as their home has them in this version of the file.
    pub fn held(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> (ClientReply, Option<Payload>) {
        let not_held = (ClientReply::NotHeld, None);
        let pages = (range.end as usize).div_ceil(BLOCK_SIZE) - range.start as usize / BLOCK_SIZE;
        self.counters.requested.add(1);
        self.counters.requested_pages.add(pages);
        let Some(file) = self.find(unit.inode) else { return not_held };
        let bytes = {
            let state = file.state.lock();
            let is_version = state.generation == generation;
            let held = state.units.get(&unit.index).filter(|held| is_version && held.is_at_home(range));
            let Some(held) = held else { return not_held };
            let is_busy = held.readers() >= READERS_MAX || self.frames.is_wanted();
            let bytes = if is_busy { None } else { self.sent.admit(held.payload(range.clone())) };
            let Some(bytes) = bytes else { return (ClientReply::Busy, None) };
            held.set_elsewhere(true);
            bytes
        };
        if bytes.is_damaged() {
            self.drop_damaged(&file, unit);
            return not_held;
        }
        self.counters.delivered.add(1);
        self.counters.delivered_pages.add(pages);
        (ClientReply::Read, Some(bytes))
    }

    /// What is in memory of a unit is not what came there.
    fn drop_damaged(&self, file: &FileData, unit: UnitId) {
        log::error!(
            "memory of this node is faulty: bytes of {} have changed in it by themselves, and are read anew",
            unit.inode
        );
        self.counters.damaged.add(1);
        let mut state = file.state.lock();
        if state.units.get(&unit.index).is_some_and(UnitFrame::is_clean) {
            state.units.remove(&unit.index);
            state.dropped(unit.index);
        }
    }

    /// All bytes in memory that their homes have, too, for who examines memory.
    pub fn at_rest(&self) -> Vec<AtRest> {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        let mut found = Vec::new();
        for file in files {
            let state = file.state.lock();
            let generation = state.generation;
            for (&index, held) in state.units.iter().filter(|(_, held)| held.is_clean()) {
                let unit = UnitId { inode: file.inode, index };
                let bytes = held.valid().iter().map(|range| held.payload(range));
                found.extend(bytes.map(|bytes| AtRest { unit, generation, bytes }));
            }
        }
        found
    }
}
