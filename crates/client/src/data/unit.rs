//! A unit of a file in memory: which of its bytes are true, and which its home does not have.

use super::lend::{LentFile, LentUnit};
use super::pass::Pass;
use super::queues::Place;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_io::{Frame, Payload};

/// A unit in memory.
pub(super) struct UnitFrame {
    /// Set while programs read in the frame. Before anything here makes untrue what they read it is taken away, and so it is
    /// before the frame is let go of.
    lent: Option<LentUnit>,
    /// Shared with sends and replies under way; then it is copied before it is changed.
    frame: Arc<Frame>,
    /// Bytes that are what a reader of this node shall see.
    valid: RangeSet,
    /// Of them, bytes that the unit's home does not have.
    pub dirty: RangeSet,
    /// Of them, bytes on their way to the home.
    pub sending: RangeSet,
    /// Another node has changed the file since these were sent: whose bytes the home has got last, nobody here knows.
    pub overtaken: bool,
    /// Number of the oldest write among the dirty bytes, and among those on their way.
    pub dirty_since: u64,
    pub sending_since: u64,
    /// Where it waits to leave memory.
    place: Option<Arc<Place>>,
    pass: Pass,
}

impl UnitFrame {
    pub(super) fn new(frame: Frame) -> Self {
        let (valid, dirty, sending) = Default::default();
        let (dirty_since, sending_since, overtaken) = (0, 0, false);
        let (lent, frame, place, pass) = (None, Arc::new(frame), None, Pass::default());
        Self { lent, frame, valid, dirty, sending, overtaken, dirty_since, sending_since, place, pass }
    }

    /// It has a place from now on, if it had none.
    pub(super) fn place_in(&mut self, enter: impl FnOnce() -> Arc<Place>) {
        let place = self.place.get_or_insert_with(enter);
        if self.pass.has_begun() {
            place.meet();
        }
    }

    pub(super) fn is_at(&self, place: &Arc<Place>) -> bool {
        self.place.as_ref().is_some_and(|own| Arc::ptr_eq(own, place))
    }

    /// A program has read these bytes, or written them: to go on in a unit is no use of its own.
    pub(super) fn used(&mut self, range: &Range<u32>) {
        let begins_anew = self.pass.step(range);
        if let Some(place) = &self.place {
            place.meet();
            if begins_anew {
                place.used();
            }
        }
    }

    /// Whether another node is known to have it in memory, too.
    pub(super) fn set_elsewhere(&self, is_elsewhere: bool) {
        if let Some(place) = &self.place {
            place.set_elsewhere(is_elsewhere);
        }
    }

    pub(super) fn valid(&self) -> &RangeSet {
        &self.valid
    }

    /// Has programs read the valid bytes around `wanted`, as far as the file has them; whether they may.
    pub(super) fn lend(
        &mut self,
        file: &mut LentFile,
        index: u64,
        wanted: &Range<u32>,
        in_file: u32,
    ) -> bool {
        let around = self.valid.around(wanted).map(|range| range.start..range.end.min(in_file));
        let around = around.filter(|bytes| wanted.end <= bytes.end);
        around.is_some_and(|bytes| file.lend(&mut self.lent, self.frame.number(), index, bytes))
    }

    /// Whether the frame can be changed where it is.
    pub(super) fn is_own(&mut self) -> bool {
        Arc::get_mut(&mut self.frame).is_some()
    }

    /// Has `copy` put bytes that a program has written, if the frame is the unit's own; whether it is.
    pub(super) fn write(&mut self, range: Range<u32>, copy: impl Fn(&mut [u8])) -> bool {
        self.lent = None;
        let Some(frame) = Arc::get_mut(&mut self.frame) else { return false };
        copy(frame.change(range.clone()));
        self.changed(range);
        true
    }

    /// Puts bytes of the home where there are none yet, if the frame is the unit's own. Those that are lent stay. Whether bytes beside
    /// them were found damaged, and are forgotten.
    pub(super) fn fill(&mut self, range: &Range<u32>, fetched: &Payload) -> bool {
        let gaps = self.valid.gaps(range.clone());
        // One is enough: the reader comes round again.
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

    /// The home's bytes are in the frame.
    pub(super) fn fetched(&mut self, range: Range<u32>) {
        self.valid.insert(range);
    }

    /// Forgets bytes, also those that the home does not have.
    pub(super) fn forget(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        self.lent = None;
        self.valid.remove(range.clone());
        self.dirty.remove(range);
    }

    /// Forgets clean bytes of the blocks that a change of `range` leaves parts of, if they have changed by themselves: the change
    /// takes their checksums away. Whether there were any.
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

    /// Forgets what is not dirty.
    pub(super) fn keep_dirty(&mut self) {
        self.lent = None;
        self.valid = self.dirty.clone();
    }

    /// Whether bytes of write number `write` or an earlier one are not at the home.
    pub(super) fn holds_back(&self, write: u64) -> bool {
        (!self.dirty.is_empty() && self.dirty_since <= write)
            || (!self.sending.is_empty() && self.sending_since <= write)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.sending.is_empty()
    }

    /// Takes over `spare` in place of a frame that others still read, with the same valid bytes. Whether some were found damaged, and
    /// are forgotten.
    pub(super) fn replace_frame(&mut self, mut spare: Frame) -> bool {
        self.lent = None;
        let ranges: Vec<_> = self.valid.iter().collect();
        let found = ranges.iter().filter(|range| self.forget_damaged(range)).count() > 0;
        for range in self.valid.iter() {
            spare.copy_from(range.start, &self.payload(range));
        }
        self.frame = Arc::new(spare);
        found
    }

    /// Takes over `frame`, all of whose bytes a program has just written.
    pub(super) fn exchange_frame(&mut self, frame: Frame) {
        self.lent = None;
        self.frame = Arc::new(frame);
    }

    /// A program has written all bytes of the frame.
    pub(super) fn filled(&mut self) {
        self.changed(0..UNIT_SIZE as u32);
    }

    /// A program has written these bytes: no other node has them.
    fn changed(&mut self, range: Range<u32>) {
        self.used(&range);
        self.set_elsewhere(false);
        self.valid.insert(range.clone());
        self.dirty.insert(range);
    }

    /// Whether the unit's home has all these bytes as they are here.
    pub(super) fn is_at_home(&self, range: &Range<u32>) -> bool {
        let is_free = |changed: &RangeSet| changed.gaps(range.clone()).iter().eq([range]);
        self.valid.contains(range) && is_free(&self.dirty) && is_free(&self.sending)
    }

    /// Sends and replies under way that read the frame.
    pub(super) fn readers(&self) -> usize {
        Arc::strong_count(&self.frame) - 1
    }

    pub(super) fn payload(&self, range: Range<u32>) -> Payload {
        Payload::new(self.frame.clone(), range)
    }

    /// Another node has changed the file: what its home may have otherwise is not shown any more.
    pub(super) fn drop_clean(&mut self) {
        self.lent = None;
        self.valid = self.dirty.iter().chain(self.sending.iter()).collect();
        self.overtaken = !self.sending.is_empty();
    }

    /// What was on its way is there, or lost. Bytes that the home may have otherwise are not shown any more, but those that
    /// were written again since; whether there were any.
    pub(super) fn sent(&mut self, is_lost: bool) -> bool {
        let sent = std::mem::take(&mut self.sending);
        let is_doubtful = std::mem::take(&mut self.overtaken) || is_lost;
        if is_doubtful {
            self.lent = None;
        }
        for range in sent.iter().filter(|_| is_doubtful) {
            for gone in self.dirty.gaps(range) {
                self.valid.remove(gone);
            }
        }
        is_doubtful
    }
}

/// The frame of fetched bytes, with these where `range` has them in a unit, if nobody else holds it.
pub(super) fn frame_of(fetched: Payload, range: &Range<u32>) -> Option<Frame> {
    let start = fetched.start();
    let mut frame = fetched.into_frame()?;
    if start != range.start {
        frame.move_within(start..start + range.len() as u32, range.start);
    }
    Some(frame)
}
