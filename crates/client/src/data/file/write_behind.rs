//! Write-behind of one file: writes that are not yet sent, not yet durable, or not yet committed to the file's home.

use super::FileData;
use super::unit::UnitFrame;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tameike_core::limits::{PIECES_MAX, UNIT_SIZE};
use tameike_core::{Attr, Generation, HomeId, Result, Timestamp};
use tameike_io::{Frame, Payload};

/// Writes that are not committed to the file's home.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Uncommitted {
    /// Highest end of the writes.
    pub(in crate::data) end: u64,
    /// Time of the last write.
    pub(in crate::data) time: Timestamp,
    /// True if any began beyond the end of the file.
    pub(in crate::data) holes: bool,
}

impl Uncommitted {
    fn and(self, later: Option<Self>) -> Self {
        let Some(later) = later else { return self };
        Self { end: self.end.max(later.end), time: later.time, holes: self.holes || later.holes }
    }
}

/// Writes of this node to one file.
#[derive(Default)]
pub(super) struct WriteBehind {
    /// Number of writes.
    count: u64,
    /// Sends in flight.
    in_flight: u32,
    /// Writes since the last flush began.
    uncommitted: Option<Uncommitted>,
    /// Writes that a flush in progress commits, or that an earlier one could not commit.
    committing: Option<Uncommitted>,
    /// True if any of them went to units: inline writes are committed with the inode record.
    in_units: bool,
    /// Unit homes that hold writes of this node that are not durable.
    unsynced: BTreeSet<HomeId>,
    /// Attributes that the home reported with this node's last write.
    reported: Option<Attr>,
}

impl WriteBehind {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn next(&self) -> u64 {
        self.count + 1
    }

    pub(super) fn is_sending(&self) -> bool {
        self.in_flight > 0
    }

    pub(super) fn add(&mut self, end: u64, time: Timestamp, holes: bool) {
        let write = Uncommitted { end, time, holes };
        self.count += 1;
        self.uncommitted = Some(self.uncommitted.map_or(write, |before| before.and(Some(write))));
    }

    pub(super) fn unknown(&self) -> Option<Uncommitted> {
        self.committing.map(|committing| committing.and(self.uncommitted)).or(self.uncommitted)
    }

    pub(super) fn forget(&mut self) {
        (self.uncommitted, self.committing, self.in_units) = (None, None, false);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        for unknown in [&mut self.uncommitted, &mut self.committing].into_iter().flatten() {
            unknown.end = unknown.end.min(size);
        }
    }

    pub(super) fn end_send(&mut self) {
        self.in_flight -= 1;
    }
}

impl FileData {
    /// Number of commits after which the homes had all of this node's earlier writes.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// Records that the home knows that no send of this node's writes is in flight.
    pub fn count_commit(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the size and the time of the last write, if the home does not know it yet.
    pub fn newer(&self) -> Option<(u64, Timestamp)> {
        let state = self.state.lock();
        state.writes.unknown().map(|unknown| (state.content.size(), unknown.time))
    }

    /// Returns true if this node may have written beyond the end and the home does not know it.
    pub fn has_holes(&self) -> bool {
        self.state.lock().writes.unknown().is_some_and(|unknown| unknown.holes)
    }

    /// Returns true if this node has written to the file: its attributes have changed, or will with the next commit.
    pub fn is_written(&self) -> bool {
        self.state.lock().writes.count > 0
    }

    /// Returns true if the homes have all writes of this node.
    pub fn is_flushed(&self) -> bool {
        let state = self.state.lock();
        state.writes.unknown().is_none() && !state.writes.is_sending() && state.units.is_clean()
    }

    pub(in crate::data) fn writes(&self) -> u64 {
        self.state.lock().writes.count
    }

    /// Records attributes that the home reported with a write.
    pub(in crate::data) fn learn_attr(&self, attr: Option<Attr>) {
        self.state.lock().writes.reported = attr;
    }

    /// Returns the attributes that the home reported with this node's last write; `None` if there are uncommitted writes or a later
    /// version.
    pub fn reported_attr(&self) -> Option<Attr> {
        let state = self.state.lock();
        let generation = state.content.generation();
        let reported = state.writes.reported.as_ref().filter(|attr| attr.generation == generation)?;
        (state.writes.unknown().is_none() && !state.writes.is_sending()).then(|| reported.clone())
    }

    /// Writes bytes into the unit's frame with `copy`; returns `false` if it first needs a spare frame. `enter` adds the unit to an
    /// eviction queue.
    pub(in crate::data) fn put_bytes(
        &self,
        (index, range): (u64, &Range<u32>),
        now: Timestamp,
        copy: impl Fn(&mut [u8]),
        spare: &mut Option<Frame>,
        enter: impl FnOnce(&mut UnitFrame),
    ) -> bool {
        let mut state = self.state.lock();
        let write = state.writes.next();
        if !state.units.put_bytes((index, range), write, copy, spare) {
            return false;
        }
        state.wrote(index * UNIT_SIZE as u64 + u64::from(range.start), range.len() as u64, now);
        if let Some(unit) = state.units.get_mut(index) {
            enter(unit);
        }
        true
    }

    /// Gives the unit a frame that is full of new bytes, like [`Self::put_bytes`].
    pub(in crate::data) fn put_frame(
        &self,
        index: u64,
        frame: Frame,
        now: Timestamp,
        enter: impl FnOnce(&mut UnitFrame),
    ) {
        let mut state = self.state.lock();
        let write = state.writes.next();
        state.units.put_frame(index, write, frame);
        state.wrote(index * UNIT_SIZE as u64, UNIT_SIZE as u64, now);
        if let Some(unit) = state.units.get_mut(index) {
            enter(unit);
        }
    }

    pub(in crate::data) fn is_unit_dirty(&self, index: u64) -> bool {
        self.state.lock().units.get(index).is_some_and(UnitFrame::is_all_dirty)
    }

    pub(in crate::data) fn is_unit_scattered(&self, index: u64) -> bool {
        self.state.lock().units.get(index).is_some_and(|unit| unit.dirty_pieces() >= PIECES_MAX)
    }

    pub(in crate::data) fn begin_send(&self, index: u64) -> Option<Vec<Payload>> {
        let mut state = self.state.lock();
        let parts = state.units.get_mut(index)?.begin_send()?;
        state.writes.in_flight += 1;
        Some(parts)
    }

    /// Ends a send. Drops the unit if it is clean and its memory is `wanted`.
    pub(in crate::data) fn end_send(&self, index: u64, sent: Result<()>, wanted: impl FnOnce() -> bool) {
        {
            let mut state = self.state.lock();
            state.end_send(index, sent.is_err());
            state.units.release_sent(index, wanted());
            if let Err(fault) = sent {
                let fault = fault.context(format_args!("writing unit {index} of {}", self.inode));
                log::warn!("{fault}");
                state.faults.add(fault);
            }
        }
        self.changed.notify(usize::MAX);
    }

    /// Records a write to the unit home `home`; returns the version that it changes.
    pub(in crate::data) fn begin_unit_write(&self, home: HomeId) -> Generation {
        let mut state = self.state.lock();
        state.writes.unsynced.insert(home);
        state.writes.in_units = true;
        state.content.generation()
    }

    /// Begins a flush: it commits all writes so far, including those that an earlier flush could not commit. Returns the number of the last
    /// write.
    pub(in crate::data) fn begin_commit(&self) -> u64 {
        let writes = &mut self.state.lock().writes;
        writes.committing = writes.unknown();
        writes.uncommitted = None;
        writes.count
    }

    /// Returns the writes in units that the flush commits.
    pub(in crate::data) fn committing(&self) -> Option<Uncommitted> {
        let writes = &self.state.lock().writes;
        writes.committing.filter(|_| writes.in_units)
    }

    /// Records that the home knows all writes up to number `last`. Until then this node shows them as uncommitted.
    pub(in crate::data) fn end_commit(&self, last: u64) {
        let writes = &mut self.state.lock().writes;
        writes.committing = None;
        if writes.count == last {
            writes.in_units = false;
        }
    }

    pub(in crate::data) fn held_back(&self, last: u64) -> Vec<u64> {
        self.state.lock().units.held_back(last)
    }

    /// Takes the unit homes that hold writes of this node that are not durable.
    pub(in crate::data) fn take_unsynced(&self) -> BTreeSet<HomeId> {
        std::mem::take(&mut self.state.lock().writes.unsynced)
    }

    pub(in crate::data) fn add_unsynced(&self, homes: impl IntoIterator<Item = HomeId>) {
        self.state.lock().writes.unsynced.extend(homes);
    }
}
