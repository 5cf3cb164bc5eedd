//! Reads of granted frames. `frames` explains why no stale byte is returned.

use super::parts_mut;
use crate::frames::{
    BYTES, EPOCH, FILE_END, FILE_EPOCH, FILE_KEY, FILE_TIME, KEY, LEASE, Layout, TIME, UNIT, VERSION,
    bytes_of, file_of, is_granted, now,
};
use crate::message::FileKey;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::arena::Sight;

/// The agent's frames, and the table of grants.
#[derive(Debug)]
pub(crate) struct GrantedFrames {
    layout: Layout,
    table: Sight,
    slab: Sight,
}

/// A valid grant.
struct Grant {
    frame: u32,
    version: u64,
    epoch: u64,
}

impl GrantedFrames {
    pub fn map(frames: u32, table: impl AsFd, slab: impl AsFd) -> std::io::Result<Self> {
        let layout = Layout::new(frames);
        let table = Sight::map(table, layout.size())?;
        let slab = Sight::map_slab(slab, frames as usize * UNIT_SIZE)?;
        Ok(Self { layout, table, slab })
    }

    /// Reads up to `size` bytes at `offset` of a file into slices, after the first `skipped` bytes of these. Returns the number of bytes;
    /// `None` if they are not granted, and then the slices may hold anything.
    pub fn read(
        &self,
        key: FileKey,
        offset: u64,
        size: u32,
        (into, skipped): (&mut [&mut [u8]], usize),
    ) -> Option<u32> {
        let end = self.published_end(key);
        let left = end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let count = u64::from(size).min(left) as u32;
        let into = parts_mut(into, skipped, count as usize);
        let is_read = count == 0 || self.read_bytes(key, offset, count, into);
        // The end matters only for truncated reads.
        let is_valid = is_read && (count == size || self.published_end(key) == end);
        is_valid.then_some(count)
    }

    /// The size of a file, if it is published.
    fn published_end(&self, key: FileKey) -> Option<u64> {
        let word = |place| self.table.load_long(file_of(key) + place);
        let end = word(FILE_END).checked_sub(1)?;
        fence(Ordering::Acquire);
        let is_recent = now().wrapping_sub(word(FILE_TIME)) <= LEASE.as_nanos() as u64;
        // Keys are never reused: if it is this one now, it was before.
        (word(FILE_KEY) == key.get() && is_recent).then_some(end)
    }

    /// Reads `size` bytes, at least one; returns true if all were granted.
    fn read_bytes<'b>(
        &self,
        key: FileKey,
        offset: u64,
        size: u32,
        into: impl Iterator<Item = &'b mut [u8]>,
    ) -> bool {
        let (unit, start) = (offset / UNIT_SIZE as u64, (offset % UNIT_SIZE as u64) as u32);
        if start as usize + size as usize > UNIT_SIZE {
            return false;
        }
        let Some(grant) = self.find(key, unit, start, start + size) else { return false };
        let mut at = grant.frame as usize * UNIT_SIZE + start as usize;
        for part in into {
            self.slab.copy_out(at, part);
            at += part.len();
        }
        // The copy happens before the checks.
        fence(Ordering::Acquire);
        let version = self.table.load_long(self.layout.record(grant.frame) + VERSION);
        version == grant.version && self.table.load_long(file_of(key) + FILE_EPOCH) == grant.epoch
    }

    fn find(&self, key: FileKey, unit: u64, start: u32, end: u32) -> Option<Grant> {
        let epoch = self.table.load_long(file_of(key) + FILE_EPOCH);
        self.layout.places(key, unit).into_iter().find_map(|place| {
            let frame = self.table.load(place).checked_sub(1).filter(|frame| *frame < self.layout.frames)?;
            let record = self.layout.record(frame);
            let word = |place| self.table.load_long(record + place);
            let version = word(VERSION);
            fence(Ordering::Acquire);
            let bytes = bytes_of(word(BYTES));
            let is_it = is_granted(version)
                && word(KEY) == key.get()
                && word(EPOCH) == epoch
                && word(UNIT) == unit
                && bytes.start <= start
                && end <= bytes.end
                && bytes.end as usize <= UNIT_SIZE
                && now().wrapping_sub(word(TIME)) <= LEASE.as_nanos() as u64;
            is_it.then_some(Grant { frame, version, epoch })
        })
    }
}
