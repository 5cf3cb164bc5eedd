//! A unit of a file in memory: which of its bytes are true, and which its home does not have.

use std::ops::Range;
use std::sync::Arc;
use tameike_core::ranges::RangeSet;
use tameike_io::{Frame, Payload};

/// A unit in memory.
pub(super) struct UnitFrame {
    /// Shared with sends and replies under way; then it is copied before it is changed.
    pub frame: Arc<Frame>,
    /// Bytes that are what a reader of this node shall see.
    pub valid: RangeSet,
    /// Of them, bytes that the unit's home does not have.
    pub dirty: RangeSet,
    /// Of them, bytes on their way to the home.
    pub sending: RangeSet,
    /// Another node has changed the file since these were sent: whose bytes the home has got last, nobody here knows.
    pub overtaken: bool,
    /// Number of the oldest write among the dirty bytes, and among those on their way.
    pub dirty_since: u64,
    pub sending_since: u64,
    /// Place in the order of use.
    pub used: u64,
}

impl UnitFrame {
    pub(super) fn new(frame: Frame, used: u64) -> Self {
        let (valid, dirty, sending) = Default::default();
        let (dirty_since, sending_since, overtaken) = (0, 0, false);
        Self { frame: Arc::new(frame), valid, dirty, sending, overtaken, dirty_since, sending_since, used }
    }

    /// Whether bytes of write number `write` or an earlier one are not at the home.
    pub(super) fn holds_back(&self, write: u64) -> bool {
        (!self.dirty.is_empty() && self.dirty_since <= write)
            || (!self.sending.is_empty() && self.sending_since <= write)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.sending.is_empty()
    }

    /// Takes over `spare` in place of a frame that others still read, with the same valid bytes.
    pub(super) fn replace_frame(&mut self, mut spare: Frame) {
        for range in self.valid.iter() {
            let range = range.start as usize..range.end as usize;
            spare[range.clone()].copy_from_slice(&self.frame[range]);
        }
        self.frame = Arc::new(spare);
    }

    pub(super) fn payload(&self, range: Range<u32>) -> Payload {
        Payload::new(self.frame.clone(), range)
    }

    /// Another node has changed the file: what its home may have otherwise is not shown any more.
    pub(super) fn drop_clean(&mut self) {
        self.valid = self.dirty.iter().chain(self.sending.iter()).collect();
        self.overtaken = !self.sending.is_empty();
    }

    /// What was on its way is there, or lost. Bytes that the home may have otherwise are not shown any more, but those that
    /// were written again since; whether there were any.
    pub(super) fn sent(&mut self, is_lost: bool) -> bool {
        let sent = std::mem::take(&mut self.sending);
        let is_doubtful = std::mem::take(&mut self.overtaken) || is_lost;
        for range in sent.iter().filter(|_| is_doubtful) {
            for gone in self.dirty.gaps(range) {
                self.valid.remove(gone);
            }
        }
        is_doubtful
    }
}
