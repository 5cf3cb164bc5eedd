//! Reading what the agent has lent. Why nothing is read that is not true is said in `frames`, where the other half is.

use super::parts_mut;
use crate::frames::{File, LEASE, Layout, bytes_of, is_lent, now};
use crate::message::FileKey;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::arena::Sight;

/// The agent's frames, and its table of those that are lent.
#[derive(Debug)]
pub(crate) struct LentFrames {
    layout: Layout,
    table: Sight,
    slab: Sight,
}

/// A frame that was found lent.
struct Loan {
    frame: u32,
    version: u64,
    epoch: u64,
}

impl LentFrames {
    pub fn map(frames: u32, table: impl AsFd, slab: impl AsFd) -> std::io::Result<Self> {
        let layout = Layout::new(frames);
        let table = Sight::map(table, layout.size())?;
        let slab = Sight::map_slab(slab, frames as usize * UNIT_SIZE)?;
        Ok(Self { layout, table, slab })
    }

    /// Reads `size` bytes at `offset` of a file, or what there is of them before its end, into slices after so many bytes of these;
    /// how many, if they were to be had. If not, the slices may hold anything.
    pub fn read(
        &self,
        key: FileKey,
        offset: u64,
        size: u32,
        (into, skipped): (&mut [&mut [u8]], usize),
    ) -> Option<u32> {
        let end = self.told_end(key);
        let left = end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let count = u64::from(size).min(left) as u32;
        let into = parts_mut(into, skipped, count as usize);
        let is_read = count == 0 || self.read_bytes(key, offset, count, into);
        // Where nothing was cut off, the end does not matter.
        let is_so = is_read && (count == size || self.told_end(key) == end);
        is_so.then_some(count)
    }

    /// The size of a file, if it is told.
    fn told_end(&self, key: FileKey) -> Option<u64> {
        let file = File::of(key);
        let word = |place| self.table.load_long(place);
        let end = word(file.end()).checked_sub(1)?;
        fence(Ordering::Acquire);
        let is_recent = now().wrapping_sub(word(file.time())) <= LEASE.as_nanos() as u64;
        // A key is never given twice: if it is this one now, it was before.
        (word(file.key()) == key.get() && is_recent).then_some(end)
    }

    /// Reads `size` bytes, at least one; whether they were all to be had.
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
        let Some(loan) = self.find(key, unit, start, start + size) else { return false };
        let mut at = loan.frame as usize * UNIT_SIZE + start as usize;
        for part in into {
            self.slab.copy_out(at, part);
            at += part.len();
        }
        // What was copied is older than what is read now.
        fence(Ordering::Acquire);
        let version = self.table.load_long(self.layout.record(loan.frame).version());
        version == loan.version && self.table.load_long(File::of(key).epoch()) == loan.epoch
    }

    fn find(&self, key: FileKey, unit: u64, start: u32, end: u32) -> Option<Loan> {
        let epoch = self.table.load_long(File::of(key).epoch());
        self.layout.places(key, unit).into_iter().find_map(|place| {
            let frame = self.table.load(place).checked_sub(1).filter(|frame| *frame < self.layout.frames)?;
            let record = self.layout.record(frame);
            let version = self.table.load_long(record.version());
            fence(Ordering::Acquire);
            let word = |place| self.table.load_long(place);
            let bytes = bytes_of(word(record.bytes()));
            let is_it = is_lent(version)
                && word(record.key()) == key.get()
                && word(record.epoch()) == epoch
                && word(record.unit()) == unit
                && bytes.start <= start
                && end <= bytes.end
                && bytes.end as usize <= UNIT_SIZE
                && now().wrapping_sub(word(record.time())) <= LEASE.as_nanos() as u64;
            is_it.then_some(Loan { frame, version, epoch })
        })
    }
}
