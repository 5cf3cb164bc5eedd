//! Frames of one file that are lent to programs of this node, which read in them by themselves.
//!
//! Lent is what a program has just been answered from a frame, until that is recalled: what is lent is valid. A unit is recalled
//! before its frame is changed, or serves something else ([`super::unit`]). All of a file is recalled before the kernel of the node
//! may change it, when it is truncated, and when a read of it would be its last access, which this node must count. What is lent of
//! a file that has no open handle any more is recalled with the last close. So it is with the end of a file, which is shown when a
//! request has met it, until the size is another.

use super::lent::{FrameGranter, GrantKey, GrantedFile};
use super::unit::UnitFrame;
use super::{FileData, FileState};
use crate::data::split;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::Timestamp;
use tameike_core::limits::{INLINE_SIZE_MAX, UNIT_SIZE};
use tameike_io::Frame;

/// What is lent of one file.
#[derive(Default)]
pub(super) struct Lending {
    /// Set once frames may be lent.
    file: Option<GrantedFile>,
    /// Whether none are, as the file's content is elsewhere.
    is_refused: bool,
}

impl Lending {
    /// Recalls all that is lent of the file.
    pub(super) fn revoke(&mut self) {
        if let Some(file) = &mut self.file {
            file.revoke();
        }
    }

    /// The file is about to grow.
    pub(super) fn withdraw_end(&mut self) {
        if let Some(file) = &mut self.file {
            file.withdraw_end();
        }
    }

    /// Nothing more is lent under the file's key.
    pub(super) fn close(&mut self) {
        self.file = None;
    }
}

impl FileState {
    /// The times have changed: recalls what is lent, if a read may be the last access.
    pub(super) fn revoke_for_access(&mut self, now: Timestamp) {
        if self.access.awaits_access(now) {
            self.lending.revoke();
        }
    }

    /// A read has met the end of the file.
    fn show_end(&mut self, now: Timestamp) {
        if !self.access.awaits_access(now)
            && let Some(file) = &mut self.lending.file
        {
            file.show_end(self.content.size());
        }
    }

    /// Puts inline content that is here into a frame, unless something is there of its unit; whether it did.
    fn keep_inline(&mut self, mut frame: Frame) -> bool {
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
        match (&mut self.lending.file, self.units.get_mut(index)) {
            (Some(file), Some(unit)) => unit.grant(file, index, bytes, in_file),
            _ => false,
        }
    }
}

impl FileData {
    /// Whether what is here is the file's content: while it is not, nothing is lent of it, nor is its end shown.
    pub(crate) fn set_lends(&self, lends: bool) {
        let lending = &mut self.state.lock().lending;
        lending.is_refused = !lends;
        if !lends {
            lending.file = None;
        }
    }

    /// By which programs find what is lent; `lender` gives it out. None when nothing will be lent.
    pub(in crate::data) fn lending_key(&self, lender: &Arc<dyn FrameGranter>) -> Option<GrantKey> {
        let mut state = self.state.lock();
        if state.lending.file.is_none() && state.opens > 0 && !state.lending.is_refused {
            state.lending.file = GrantedFile::new(lender);
        }
        state.lending.file.as_ref().map(GrantedFile::key)
    }

    /// Lends bytes that a program has just read, of so many that it wanted, if they are in one frame; whether they are lent.
    pub(in crate::data) fn grant(&self, offset: u64, length: usize, wanted: u32, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        if length < wanted as usize {
            state.show_end(now);
        }
        let mut parts = split(offset, length as u64);
        let (Some((index, start, count)), None) = (parts.next(), parts.next()) else { return false };
        state.grant(index, &(start..start + count), now)
    }

    /// Whether inline content may be lent from now on; and whether a frame is needed for it.
    pub(in crate::data) fn lends_inline(&self, now: Timestamp) -> Option<bool> {
        let state = self.state.lock();
        let is_lendable =
            state.lending.file.is_some() && state.content.is_inline() && !state.access.awaits_access(now);
        is_lendable.then(|| state.content.size() > 0 && !state.units.contains(0))
    }

    /// Lends inline content, from `frame` where it is in none yet, and shows its end. `enter` gives the unit an entry of an
    /// eviction queue.
    pub(in crate::data) fn lend_inline(
        &self,
        frame: Option<Frame>,
        now: Timestamp,
        enter: impl FnOnce(&mut UnitFrame),
    ) {
        let state = &mut *self.state.lock();
        if let Some(frame) = frame
            && state.keep_inline(frame)
            && let Some(unit) = state.units.get_mut(0)
        {
            enter(unit);
        }
        let size = state.content.size().min(INLINE_SIZE_MAX as u64) as u32;
        if size == 0 || state.grant(0, &(0..size), now) {
            state.show_end(now);
        }
    }

    /// Recalls all that is lent.
    pub(in crate::data) fn revoke(&self) {
        self.state.lock().lending.revoke();
    }
}
