//! Lent frames: the lender that shows them to programs, and what is lent of a file and of a unit, until it is recalled.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

/// By which programs find what is lent of a file: never that of another file.
pub type GrantKey = NonZeroU64;

/// Shows programs which frames are lent. No call waits.
pub trait FrameGranter: Send + Sync + 'static {
    /// A key for a file, unless there are too many.
    fn open(&self) -> Option<GrantKey>;
    /// Takes a key back, and recalls what is lent under it.
    fn close(&self, key: GrantKey);
    /// Lends a frame, by its number, which holds these bytes of a unit.
    fn grant(&self, frame: u32, key: GrantKey, unit: u64, bytes: &Range<u32>);
    /// A lent frame is still in use.
    fn renew(&self, frame: u32, key: GrantKey, unit: u64);
    /// Recalls a frame. When this has returned, no program takes for its bytes what it holds then.
    fn revoke(&self, frame: u32);
    /// Recalls all frames of a file, as [`Self::revoke`] does one, and its end.
    fn revoke_all(&self, key: GrantKey);
    /// Shows that a file ends at `size`.
    fn publish_end(&self, key: GrantKey, size: u64);
    /// Recalls the end of a file. When this has returned, no program takes it for what it was.
    fn withdraw_end(&self, key: GrantKey);
}

/// A file of which frames can be lent.
pub(super) struct GrantedFile {
    lender: Arc<dyn FrameGranter>,
    key: GrantKey,
    /// Counts recalls of all of it.
    recalls: u64,
    /// Whether anything was lent since the last one.
    is_lent: bool,
    /// Whether the end is shown.
    is_end_shown: bool,
}

impl GrantedFile {
    pub(super) fn new(lender: &Arc<dyn FrameGranter>) -> Option<Self> {
        let (recalls, is_lent, is_end_shown) = Default::default();
        Some(Self { lender: lender.clone(), key: lender.open()?, recalls, is_lent, is_end_shown })
    }

    pub(super) fn key(&self) -> GrantKey {
        self.key
    }

    pub(super) fn revoke(&mut self) {
        let is_end_shown = std::mem::take(&mut self.is_end_shown);
        if std::mem::take(&mut self.is_lent) || is_end_shown {
            self.recalls += 1;
            self.lender.revoke_all(self.key);
        }
    }

    pub(super) fn show_end(&mut self, size: u64) {
        self.is_end_shown = true;
        self.lender.publish_end(self.key, size);
    }

    pub(super) fn withdraw_end(&mut self) {
        if std::mem::take(&mut self.is_end_shown) {
            self.lender.withdraw_end(self.key);
        }
    }

    /// Lends a frame that holds these bytes of a unit, if not as much of it is lent already; whether these are, then.
    pub(super) fn grant(
        &mut self,
        lent: &mut Option<GrantedUnit>,
        frame: u32,
        unit: u64,
        bytes: Range<u32>,
    ) -> bool {
        let is_enough = |lent: &&GrantedUnit| {
            (lent.key, lent.recalls) == (self.key, self.recalls) && lent.bytes.len() >= bytes.len()
        };
        if let Some(lent) = lent.as_ref().filter(is_enough) {
            self.lender.renew(frame, self.key, unit);
            return lent.bytes.start <= bytes.start && bytes.end <= lent.bytes.end;
        }
        self.is_lent = true;
        // What was lent before is recalled first.
        *lent = None;
        self.lender.grant(frame, self.key, unit, &bytes);
        let (lender, key, recalls) = (self.lender.clone(), self.key, self.recalls);
        *lent = Some(GrantedUnit { lender, frame, key, recalls, bytes });
        true
    }
}

impl Drop for GrantedFile {
    fn drop(&mut self) {
        self.lender.close(self.key);
    }
}

/// A unit whose frame is lent, until dropped.
pub(super) struct GrantedUnit {
    lender: Arc<dyn FrameGranter>,
    frame: u32,
    key: GrantKey,
    /// Recalls of the file before.
    recalls: u64,
    bytes: Range<u32>,
}

impl Drop for GrantedUnit {
    fn drop(&mut self) {
        self.lender.revoke(self.frame);
    }
}
