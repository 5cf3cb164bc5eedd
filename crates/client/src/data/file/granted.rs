//! Granted frames: the trait that publishes grants to programs, and the grants of a file and of a unit until they are revoked.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

/// Key by which programs find the grants of a file. Never reused for another file.
pub type GrantKey = NonZeroU64;

/// Publishes grants of frames to programs. No call blocks.
pub trait FrameGranter: Send + Sync + 'static {
    /// Allocates a key for a file; `None` if too many are in use.
    fn open(&self) -> Option<GrantKey>;
    /// Releases a key and revokes all grants under it.
    fn close(&self, key: GrantKey);
    /// Grants the frame with this number, which holds these bytes of a unit.
    fn grant(&self, frame: u32, key: GrantKey, unit: u64, bytes: &Range<u32>);
    /// Records that a granted frame is still in use.
    fn renew(&self, frame: u32, key: GrantKey, unit: u64);
    /// Revokes a frame. After it returns, no program takes the frame's later content for the granted bytes.
    fn revoke(&self, frame: u32);
    /// Revokes all frames of a file, as [`Self::revoke`] does one, and withdraws its end.
    fn revoke_all(&self, key: GrantKey);
    /// Publishes that a file ends at `size`.
    fn publish_end(&self, key: GrantKey, size: u64);
    /// Withdraws the end of a file. After it returns, no program relies on the published size.
    fn withdraw_end(&self, key: GrantKey);
}

/// A file whose frames can be granted.
pub(super) struct GrantedFile {
    table: Arc<dyn FrameGranter>,
    key: GrantKey,
    /// Number of revocations of the whole file.
    revocations: u64,
    /// True if anything was granted since the last revocation.
    has_grants: bool,
    /// True if the end is published.
    is_end_published: bool,
}

impl GrantedFile {
    pub(super) fn new(table: &Arc<dyn FrameGranter>) -> Option<Self> {
        let (revocations, has_grants, is_end_published) = Default::default();
        Some(Self { table: table.clone(), key: table.open()?, revocations, has_grants, is_end_published })
    }

    pub(super) fn key(&self) -> GrantKey {
        self.key
    }

    pub(super) fn revoke(&mut self) {
        let is_end_published = std::mem::take(&mut self.is_end_published);
        if std::mem::take(&mut self.has_grants) || is_end_published {
            self.revocations += 1;
            self.table.revoke_all(self.key);
        }
    }

    pub(super) fn publish_end(&mut self, size: u64) {
        self.is_end_published = true;
        self.table.publish_end(self.key, size);
    }

    pub(super) fn withdraw_end(&mut self) {
        if std::mem::take(&mut self.is_end_published) {
            self.table.withdraw_end(self.key);
        }
    }

    /// Grants a frame that holds these bytes of a unit, unless a grant of at least as many bytes exists. Returns true if a grant covers the
    /// bytes.
    pub(super) fn grant(
        &mut self,
        granted: &mut Option<GrantedUnit>,
        frame: u32,
        unit: u64,
        bytes: Range<u32>,
    ) -> bool {
        let is_enough = |granted: &&GrantedUnit| {
            (granted.key, granted.revocations) == (self.key, self.revocations)
                && granted.bytes.len() >= bytes.len()
        };
        if let Some(granted) = granted.as_ref().filter(is_enough) {
            self.table.renew(frame, self.key, unit);
            return granted.bytes.start <= bytes.start && bytes.end <= granted.bytes.end;
        }
        self.has_grants = true;
        // Revoke the old grant before the frame is granted again.
        *granted = None;
        self.table.grant(frame, self.key, unit, &bytes);
        let (table, key, revocations) = (self.table.clone(), self.key, self.revocations);
        *granted = Some(GrantedUnit { table, frame, key, revocations, bytes });
        true
    }
}

impl Drop for GrantedFile {
    fn drop(&mut self) {
        self.table.close(self.key);
    }
}

/// A unit whose frame is granted, until dropped.
pub(super) struct GrantedUnit {
    table: Arc<dyn FrameGranter>,
    frame: u32,
    key: GrantKey,
    /// The file's revocation count at the time of the grant.
    revocations: u64,
    bytes: Range<u32>,
}

impl Drop for GrantedUnit {
    fn drop(&mut self) {
        self.table.revoke(self.frame);
    }
}
