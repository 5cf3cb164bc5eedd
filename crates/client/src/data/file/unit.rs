//! A unit of a file in memory, with its valid and dirty bytes.

use super::granted::{GrantedFile, GrantedUnit};
use super::pass::Pass;
use super::queue_entry::QueueEntry;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_io::{Frame, Payload};

/// A unit in memory.
pub(in crate::data) struct UnitFrame {
    /// Set while programs may read the frame directly. It is revoked before the frame's granted bytes change and before the frame is
    /// released.
    granted: Option<GrantedUnit>,
    /// Shared with sends and replies in flight; while shared, it is copied before a change.
    frame: Arc<Frame>,
    /// Bytes that readers of this node may see.
    valid: RangeSet,
    /// Valid bytes that the unit's home lacks.
    dirty: RangeSet,
    /// Valid bytes of a send in flight.
    sending: RangeSet,
    /// True if another node has changed the file since this send began: this node does not know which bytes the home received last.
    overtaken: bool,
    /// Number of the oldest write among the dirty bytes, and among those of the send in flight.
    dirty_since: u64,
    sending_since: u64,
    entry: Option<Arc<QueueEntry>>,
    pass: Pass,
}

impl UnitFrame {
    pub(super) fn new(frame: Frame) -> Self {
        let (valid, dirty, sending) = Default::default();
        let (dirty_since, sending_since, overtaken) = (0, 0, false);
        let (granted, frame, entry, pass) = (None, Arc::new(frame), None, Pass::default());
        Self { granted, frame, valid, dirty, sending, overtaken, dirty_since, sending_since, entry, pass }
    }

    /// Adds the unit to an eviction queue with `enter`, if it is in none.
    pub(in crate::data) fn enter_queue(&mut self, enter: impl FnOnce() -> Arc<QueueEntry>) {
        let entry = self.entry.get_or_insert_with(enter);
        if self.pass.has_begun() {
            entry.mark_accessed();
        }
    }

    pub(super) fn is_queued_as(&self, entry: &Arc<QueueEntry>) -> bool {
        self.entry.as_ref().is_some_and(|own| Arc::ptr_eq(own, entry))
    }

    /// Records a program's read or write. Continuing through the unit is not another use.
    pub(super) fn used(&mut self, range: &Range<u32>) {
        let is_reuse = self.pass.step(range);
        if let Some(entry) = &self.entry {
            entry.mark_accessed();
            if is_reuse {
                entry.used();
            }
        }
    }

    pub(super) fn set_elsewhere(&self, is_elsewhere: bool) {
        if let Some(entry) = &self.entry {
            entry.set_elsewhere(is_elsewhere);
        }
    }

    pub(super) fn valid(&self) -> &RangeSet {
        &self.valid
    }

    /// Grants programs the valid bytes around `wanted`, up to the end of the file; returns true if a grant covers `wanted`.
    pub(super) fn grant(
        &mut self,
        file: &mut GrantedFile,
        index: u64,
        wanted: &Range<u32>,
        in_file: u32,
    ) -> bool {
        let around = self.valid.around(wanted).map(|range| range.start..range.end.min(in_file));
        let around = around.filter(|bytes| wanted.end <= bytes.end);
        around.is_some_and(|bytes| file.grant(&mut self.granted, self.frame.number(), index, bytes))
    }

    /// Returns true if the frame is not shared and can be changed in place.
    pub(super) fn is_own(&mut self) -> bool {
        Arc::get_mut(&mut self.frame).is_some()
    }

    /// Writes bytes of write number `write` with `copy`; returns false if the frame is shared.
    pub(super) fn write(&mut self, range: Range<u32>, write: u64, copy: impl Fn(&mut [u8])) -> bool {
        self.granted = None;
        let Some(frame) = Arc::get_mut(&mut self.frame) else { return false };
        copy(frame.change(range.clone()));
        self.changed(range, write);
        true
    }

    /// Copies the home's bytes into the gaps, unless the frame is shared. Granted bytes do not change. Returns true if it found and dropped
    /// corrupted bytes next to a gap.
    pub(super) fn fill(&mut self, range: &Range<u32>, fetched: &Payload) -> bool {
        let gaps = self.valid.gaps(range.clone());
        // One is enough: the reader plans again.
        if gaps.iter().any(|gap| self.forget_damaged(gap)) {
            return true;
        }
        let Some(frame) = Arc::get_mut(&mut self.frame) else { return false };
        for gap in gaps {
            frame.copy_from(gap.start, &fetched.slice(gap.start - range.start..gap.end - range.start));
            self.valid.insert(gap);
        }
        false
    }

    /// Marks bytes of the home that are in the frame as valid.
    pub(super) fn fetched(&mut self, range: Range<u32>) {
        self.valid.insert(range);
    }

    pub(super) fn forget(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        self.granted = None;
        self.valid.remove(range.clone());
        self.dirty.remove(range);
    }

    /// Drops clean bytes of the blocks that a change of `range` covers partly, if they fail their checksums: the change removes the
    /// checksums. Returns true if it dropped any.
    pub(super) fn forget_damaged(&mut self, range: &Range<u32>) -> bool {
        let block = BLOCK_SIZE as u32;
        let mut found = false;
        for end in [range.start, range.end] {
            let around = end / block * block..end.next_multiple_of(block);
            let lacks = |bytes: &RangeSet| bytes.gaps(around.clone()).iter().eq([&around]);
            let is_clean = !around.is_empty() && lacks(&self.dirty) && lacks(&self.sending);
            if is_clean && !lacks(&self.valid) && self.payload(around.clone()).is_damaged() {
                found = true;
                self.forget(around.clone());
                if let Some(frame) = Arc::get_mut(&mut self.frame) {
                    frame.change(around);
                }
            }
        }
        found
    }

    pub(super) fn keep_dirty(&mut self) {
        self.granted = None;
        self.valid = self.dirty.clone();
    }

    /// Returns true if the home lacks bytes of write number `write` or an earlier one.
    pub(super) fn holds_back(&self, write: u64) -> bool {
        (!self.dirty.is_empty() && self.dirty_since <= write)
            || (!self.sending.is_empty() && self.sending_since <= write)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.sending.is_empty()
    }

    /// Replaces a shared frame by `spare`, with the same valid bytes. Returns true if it found and dropped corrupted ones.
    pub(super) fn replace_frame(&mut self, mut spare: Frame) -> bool {
        self.granted = None;
        let ranges: Vec<_> = self.valid.iter().collect();
        let found = ranges.iter().filter(|range| self.forget_damaged(range)).count() > 0;
        for range in self.valid.iter() {
            spare.copy_from(range.start, &self.payload(range));
        }
        self.frame = Arc::new(spare);
        found
    }

    /// Replaces the frame by `frame`, which a program has just written completely.
    pub(super) fn exchange_frame(&mut self, frame: Frame) {
        self.granted = None;
        self.frame = Arc::new(frame);
    }

    pub(super) fn filled(&mut self, write: u64) {
        self.changed(0..UNIT_SIZE as u32, write);
    }

    /// Records bytes of write number `write`: no other node has them.
    fn changed(&mut self, range: Range<u32>, write: u64) {
        if self.dirty.is_empty() {
            self.dirty_since = write;
        }
        self.used(&range);
        self.set_elsewhere(false);
        self.valid.insert(range.clone());
        self.dirty.insert(range);
    }

    /// Returns true if these bytes are valid and the unit's home has them.
    pub(super) fn is_at_home(&self, range: &Range<u32>) -> bool {
        let is_free = |changed: &RangeSet| changed.gaps(range.clone()).iter().eq([range]);
        self.valid.contains(range) && is_free(&self.dirty) && is_free(&self.sending)
    }

    /// Returns the number of sends and replies in flight that read the frame.
    pub(super) fn readers(&self) -> usize {
        Arc::strong_count(&self.frame) - 1
    }

    pub(super) fn payload(&self, range: Range<u32>) -> Payload {
        Payload::new(self.frame.clone(), range)
    }

    /// Drops the bytes of an older version after another node has changed the file.
    pub(super) fn drop_clean(&mut self) {
        self.granted = None;
        self.valid = self.dirty.iter().chain(self.sending.iter()).collect();
        self.overtaken = !self.sending.is_empty();
    }

    /// Begins to send the dirty bytes, in pieces, unless a send of the unit is in flight.
    pub(super) fn begin_send(&mut self) -> Option<Vec<Payload>> {
        if self.dirty.is_empty() || !self.sending.is_empty() {
            return None;
        }
        self.sending = std::mem::take(&mut self.dirty);
        self.sending_since = self.dirty_since;
        Some(self.sending.iter().map(|range| self.payload(range)).collect())
    }

    pub(super) fn dirty_pieces(&self) -> usize {
        self.dirty.count()
    }

    pub(super) fn is_all_dirty(&self) -> bool {
        self.dirty.contains(&(0..UNIT_SIZE as u32))
    }

    pub(super) fn unsent_blocks(&self) -> u64 {
        let block = BLOCK_SIZE as u32;
        let ranges = self.dirty.iter().chain(self.sending.iter());
        let blocks: RangeSet = ranges.map(|range| range.start / block..range.end.div_ceil(block)).collect();
        u64::from(blocks.len()) * (BLOCK_SIZE as u64 / 512)
    }

    /// Number of pieces that the home lacks.
    #[cfg(test)]
    pub(super) fn unsent_pieces(&self) -> usize {
        self.dirty.count() + self.sending.count()
    }

    /// Ends the send in flight. If its bytes are lost, or another node changed the file meanwhile, drops them except where they were
    /// written again since. Returns true in that case.
    pub(super) fn sent(&mut self, is_lost: bool) -> bool {
        let sent = std::mem::take(&mut self.sending);
        let is_doubtful = std::mem::take(&mut self.overtaken) || is_lost;
        if is_doubtful {
            self.granted = None;
        }
        for range in sent.iter().filter(|_| is_doubtful) {
            for gone in self.dirty.gaps(range) {
                self.valid.remove(gone);
            }
        }
        is_doubtful
    }
}

/// Converts fetched bytes into a frame that has them at `range` of the unit; `None` if their frame is shared.
pub(super) fn frame_of(fetched: Payload, range: &Range<u32>) -> Option<Frame> {
    let start = fetched.start();
    let mut frame = fetched.into_frame()?;
    if start != range.start {
        frame.move_within(start..start + range.len() as u32, range.start);
    }
    Some(frame)
}
