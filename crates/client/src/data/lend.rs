//! Frames that are lent to programs of this node, which read in them by themselves what they would be answered.
//!
//! Lent is what a program has just been answered from a frame, until that is recalled: what is lent is true. A unit is
//! recalled before its frame is changed, or serves something else ([`super::unit`]); all of a file, before anybody else may
//! change it (the kernel of the node), when it becomes shorter, and when a read of it would be its last access, of which this
//! room must hear. What is lent of a file that nobody has open any more is recalled with the last close. So it is with the end of
//! a file, which is told when a request has met it, until the size is another.

use super::file::FileState;
use super::unit::UnitFrame;
use super::{DataEngine, FileData, split};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::Timestamp;
use tameike_core::limits::{INLINE_SIZE_MAX, UNIT_SIZE};
use tameike_io::Frame;

/// By which programs find what is lent of a file: never that of another file.
pub type LendingKey = NonZeroU64;

/// Tells programs which frames are lent. No call waits.
pub trait FrameLender: Send + Sync + 'static {
    /// A key for a file, unless there are too many.
    fn open(&self) -> Option<LendingKey>;
    /// Takes a key back, and recalls what is lent under it.
    fn close(&self, key: LendingKey);
    /// Lends a frame, by its number, which holds these bytes of a unit.
    fn lend(&self, frame: u32, key: LendingKey, unit: u64, bytes: &Range<u32>);
    /// A lent frame is still in use.
    fn renew(&self, frame: u32, key: LendingKey, unit: u64);
    /// Recalls a frame. When this has returned, nobody takes for its bytes what it holds then.
    fn recall(&self, frame: u32);
    /// Recalls all frames of a file, as [`Self::recall`] does one, and its end.
    fn recall_all(&self, key: LendingKey);
    /// Tells that a file ends at `size`.
    fn tell_end(&self, key: LendingKey, size: u64);
    /// Recalls the end of a file. When this has returned, nobody takes it for what it was.
    fn recall_end(&self, key: LendingKey);
}

/// A file of which frames can be lent.
pub(super) struct LentFile {
    lender: Arc<dyn FrameLender>,
    key: LendingKey,
    /// Counts recalls of all of it.
    recalls: u64,
    /// Whether anything was lent since the last one.
    is_lent: bool,
    /// Whether the end is told.
    end_is_told: bool,
}

impl LentFile {
    fn new(lender: &Arc<dyn FrameLender>) -> Option<Self> {
        let (recalls, is_lent, end_is_told) = Default::default();
        Some(Self { lender: lender.clone(), key: lender.open()?, recalls, is_lent, end_is_told })
    }

    fn recall(&mut self) {
        let end_is_told = std::mem::take(&mut self.end_is_told);
        if std::mem::take(&mut self.is_lent) || end_is_told {
            self.recalls += 1;
            self.lender.recall_all(self.key);
        }
    }

    fn tell_end(&mut self, size: u64) {
        self.end_is_told = true;
        self.lender.tell_end(self.key, size);
    }

    fn recall_end(&mut self) {
        if std::mem::take(&mut self.end_is_told) {
            self.lender.recall_end(self.key);
        }
    }

    /// Lends a frame that holds these bytes of a unit, if not as much of it is lent already; whether these are, then.
    pub(super) fn lend(
        &mut self,
        lent: &mut Option<LentUnit>,
        frame: u32,
        unit: u64,
        bytes: Range<u32>,
    ) -> bool {
        let is_enough = |lent: &&LentUnit| {
            (lent.key, lent.recalls) == (self.key, self.recalls) && lent.bytes.len() >= bytes.len()
        };
        if let Some(lent) = lent.as_ref().filter(is_enough) {
            self.lender.renew(frame, self.key, unit);
            return lent.bytes.start <= bytes.start && bytes.end <= lent.bytes.end;
        }
        self.is_lent = true;
        // What was lent before is recalled first.
        *lent = None;
        self.lender.lend(frame, self.key, unit, &bytes);
        let (lender, key, recalls) = (self.lender.clone(), self.key, self.recalls);
        *lent = Some(LentUnit { lender, frame, key, recalls, bytes });
        true
    }
}

impl Drop for LentFile {
    fn drop(&mut self) {
        self.lender.close(self.key);
    }
}

/// A unit whose frame is lent, until dropped.
pub(super) struct LentUnit {
    lender: Arc<dyn FrameLender>,
    frame: u32,
    key: LendingKey,
    /// Recalls of the file before.
    recalls: u64,
    bytes: Range<u32>,
}

impl Drop for LentUnit {
    fn drop(&mut self) {
        self.lender.recall(self.frame);
    }
}

impl FileState {
    /// Recalls all that is lent of the file.
    pub(super) fn recall(&mut self) {
        if let Some(lent) = &mut self.lent {
            lent.recall();
        }
    }

    /// The file is about to grow.
    pub(super) fn recall_end(&mut self) {
        if let Some(lent) = &mut self.lent {
            lent.recall_end();
        }
    }

    /// Whether a read from `now` on may be the last access.
    fn awaits_access(&self, now: Timestamp) -> bool {
        self.times.is_some_and(|times| times.access <= times.change || times.counts(now))
    }

    /// The times have changed.
    pub(super) fn recall_for_access(&mut self, now: Timestamp) {
        if self.awaits_access(now) {
            self.recall();
        }
    }

    /// A read has met the end of the file.
    fn tell_end(&mut self, now: Timestamp) {
        if !self.awaits_access(now)
            && let Some(lent) = &mut self.lent
        {
            lent.tell_end(self.size);
        }
    }

    /// Puts inline content that is here into a frame, unless something is there of its unit; whether it did.
    fn keep_content(&mut self, mut frame: Frame) -> bool {
        let content =
            self.content.as_ref().filter(|content| self.inline && content.len() as u64 == self.size);
        let Some(content) = content.filter(|_| !self.units.contains_key(&0) && !self.fetching.contains(&0))
        else {
            return false;
        };
        frame[..content.len()].copy_from_slice(content);
        let mut unit = UnitFrame::new(frame);
        unit.fetched(0..content.len() as u32);
        self.units.insert(0, unit);
        true
    }

    fn lend(&mut self, index: u64, bytes: &Range<u32>, now: Timestamp) -> bool {
        if self.awaits_access(now) {
            return false;
        }
        let in_file = self.size.saturating_sub(index * UNIT_SIZE as u64).min(UNIT_SIZE as u64) as u32;
        match (&mut self.lent, self.units.get_mut(&index)) {
            (Some(lent), Some(unit)) => unit.lend(lent, index, bytes, in_file),
            _ => false,
        }
    }
}

impl FileData {
    /// Whether what is here is the file's content: while it is not, nothing is lent of it, nor is its end told.
    pub(crate) fn set_lends(&self, lends: bool) {
        let mut state = self.state.lock();
        state.lends_nothing = !lends;
        if !lends {
            state.lent = None;
        }
    }
}

/// A file that is open on this node, as programs may be lent it.
#[derive(Clone)]
pub struct Lendable {
    engine: Arc<DataEngine>,
    file: Arc<FileData>,
}

impl Lendable {
    pub(crate) fn new(engine: &Arc<DataEngine>, file: &Arc<FileData>) -> Self {
        Self { engine: engine.clone(), file: file.clone() }
    }

    /// By which programs find what is lent; the same until the file is not open any more. None when nothing will be.
    pub fn key(&self) -> Option<LendingKey> {
        let lender = self.engine.lender.as_ref()?;
        let mut state = self.file.state.lock();
        if state.lent.is_none() && state.opens > 0 && !state.lends_nothing {
            state.lent = LentFile::new(lender);
        }
        state.lent.as_ref().map(|lent| lent.key)
    }

    /// A program has read these bytes, of so many that it wanted, and may do so by itself from now on, if they are in one frame;
    /// whether they are.
    pub fn lend(&self, offset: u64, length: usize, wanted: u32) -> bool {
        let now = self.engine.runtime.now();
        let mut state = self.file.state.lock();
        if length < wanted as usize {
            state.tell_end(now);
        }
        let mut parts = split(offset, length as u64);
        let (Some((index, start, count)), None) = (parts.next(), parts.next()) else { return false };
        state.lend(index, &(start..start + count), now)
    }

    /// Lends the content of a file that lies in its inode record, which has just come with it, and tells its end: before it is read,
    /// where that would tell this room nothing. It waits for no frame.
    pub fn lend_small(&self) {
        let now = self.engine.runtime.now();
        let lacks_frame = {
            let state = self.file.state.lock();
            if state.lent.is_none() || !state.inline || state.awaits_access(now) {
                return;
            }
            state.size > 0 && !state.units.contains_key(&0)
        };
        let frame = if lacks_frame { self.engine.frame_now() } else { None };
        let state = &mut *self.file.state.lock();
        if let Some(frame) = frame
            && state.keep_content(frame)
        {
            self.engine.frames.enter(&self.file, state, 0);
        }
        let size = state.size.min(INLINE_SIZE_MAX as u64) as u32;
        if size == 0 || state.lend(0, &(0..size), now) {
            state.tell_end(now);
        }
    }

    /// Recalls all that is lent of it.
    pub fn recall(&self) {
        self.file.state.lock().recall();
    }
}
