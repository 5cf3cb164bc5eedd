//! Grants of one file's frames, which let programs of this node read the frames directly.
//!
//! A grant covers valid bytes that the client has just returned to a program, until it is revoked:
//! - of a unit, before its frame changes or is reused ([`super::unit`]);
//! - of the whole file, before the node's kernel may change it, when it is truncated, and when a read would be its last access, which this
//!   node must count;
//! - of the whole file, when its last handle closes.
//!
//! The end of the file is published when a read has reached it, and withdrawn when the size changes.

use super::granted::{FrameGranter, GrantKey, GrantedFile};
use super::unit::UnitFrame;
use super::{FileData, FileState};
use crate::data::split;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::Timestamp;
use tameike_core::limits::{INLINE_SIZE_MAX, UNIT_SIZE};
use tameike_io::Frame;

/// Grants of one file.
#[derive(Default)]
pub(super) struct FrameGrants {
    /// Set once frames may be granted.
    file: Option<GrantedFile>,
    /// True if the file's content is elsewhere, so that no frames are granted.
    is_refused: bool,
}

impl FrameGrants {
    pub(super) fn revoke(&mut self) {
        if let Some(file) = &mut self.file {
            file.revoke();
        }
    }

    /// Withdraws the published end of the file, which is about to grow.
    pub(super) fn withdraw_end(&mut self) {
        if let Some(file) = &mut self.file {
            file.withdraw_end();
        }
    }

    /// Releases the file's key with all its grants.
    pub(super) fn close(&mut self) {
        self.file = None;
    }
}

impl FileState {
    /// Revokes the grants if, after a change of the times, a read may be the last access.
    pub(super) fn revoke_for_access(&mut self, now: Timestamp) {
        if self.access.awaits_access(now) {
            self.grants.revoke();
        }
    }

    /// Publishes the end of the file, which a read has reached.
    fn publish_end(&mut self, now: Timestamp) {
        if !self.access.awaits_access(now)
            && let Some(file) = &mut self.grants.file
        {
            file.publish_end(self.content.size());
        }
    }

    /// Puts inline content into a frame; returns false if this node lacks the content or already has bytes of the unit.
    fn insert_inline(&mut self, mut frame: Frame) -> bool {
        let size = self.content.size();
        let content = self.content.inline().filter(|content| content.len() as u64 == size);
        let Some(content) = content.filter(|_| self.units.is_absent(0)) else { return false };
        frame[..content.len()].copy_from_slice(content);
        self.units.insert(0, frame, 0..size as u32);
        true
    }

    fn grant(&mut self, index: u64, bytes: &Range<u32>, now: Timestamp) -> bool {
        if self.access.awaits_access(now) {
            return false;
        }
        let size = self.content.size();
        let in_file = size.saturating_sub(index * UNIT_SIZE as u64).min(UNIT_SIZE as u64) as u32;
        match (&mut self.grants.file, self.units.get_mut(index)) {
            (Some(file), Some(unit)) => unit.grant(file, index, bytes, in_file),
            _ => false,
        }
    }
}

impl FileData {
    /// Permits grants. They must be off while this node's bytes are not the file's content.
    pub(crate) fn set_grantable(&self, is_grantable: bool) {
        let grants = &mut self.state.lock().grants;
        grants.is_refused = !is_grantable;
        if !is_grantable {
            grants.file = None;
        }
    }

    /// Returns the key by which programs find the grants, which `table` allocates on first use. `None` if nothing will be granted.
    pub(in crate::data) fn grant_key(&self, table: &Arc<dyn FrameGranter>) -> Option<GrantKey> {
        let mut state = self.state.lock();
        if state.grants.file.is_none() && state.opens > 0 && !state.grants.is_refused {
            state.grants.file = GrantedFile::new(table);
        }
        state.grants.file.as_ref().map(GrantedFile::key)
    }

    /// Grants the bytes that a program has just read, out of `wanted` ones. Returns false if they are not in one frame.
    pub(in crate::data) fn grant(&self, offset: u64, length: usize, wanted: u32, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        if length < wanted as usize {
            state.publish_end(now);
        }
        let mut parts = split(offset, length as u64);
        let (Some((index, start, count)), None) = (parts.next(), parts.next()) else { return false };
        state.grant(index, &(start..start + count), now)
    }

    /// Returns `None` if inline content may not be granted now, otherwise true if that takes a frame.
    pub(in crate::data) fn can_grant_inline(&self, now: Timestamp) -> Option<bool> {
        let state = self.state.lock();
        let can_grant =
            state.grants.file.is_some() && state.content.is_inline() && !state.access.awaits_access(now);
        can_grant.then(|| state.content.size() > 0 && !state.units.contains(0))
    }

    /// Grants inline content, putting it into `frame` if it is in none yet, and publishes its end. `enter` adds the unit to an eviction
    /// queue.
    pub(in crate::data) fn grant_inline(
        &self,
        frame: Option<Frame>,
        now: Timestamp,
        enter: impl FnOnce(&mut UnitFrame),
    ) {
        let state = &mut *self.state.lock();
        if let Some(frame) = frame
            && state.insert_inline(frame)
            && let Some(unit) = state.units.get_mut(0)
        {
            enter(unit);
        }
        let size = state.content.size().min(INLINE_SIZE_MAX as u64) as u32;
        if size == 0 || state.grant(0, &(0..size), now) {
            state.publish_end(now);
        }
    }

    pub(in crate::data) fn revoke(&self) {
        self.state.lock().grants.revoke();
    }
}
