//! Transfer of records from the writer's buffer to the subfile.

use super::LaneWriter;
use super::content_lanes::ContentLanes;
use super::write_behind::{HandedOverBlock, WriteBehind};
use crate::format::geometry::LaneId;
use tameike_core::Result;

impl LaneWriter {
    /// Returns true if the record at an address is in the subfile.
    pub fn has_written(&self, address: u64) -> bool {
        address < self.given
            || (address < self.address && self.write_behind.as_ref().is_none_or(WriteBehind::is_free))
    }

    /// Makes a record readable: writes it to the subfile if it is this writer's.
    pub fn make_readable(&mut self, lane: LaneId, address: u64) -> Result<()> {
        match self.of_lane(lane) {
            // Later records do not matter.
            Some(writer) if writer.has_written(address) => Ok(()),
            Some(writer) if address >= writer.address => writer.write_pending(),
            Some(writer) => writer.settle(),
            None => Ok(()),
        }
    }

    /// Writes the buffer, so that readers of the subfile see it. It is not durable.
    pub fn write_pending(&mut self) -> Result<()> {
        self.give_pending()?;
        self.settle()
    }

    /// Hands the buffer over to the caller, which writes it without this object; records that are put meanwhile are written together later.
    /// [`Self::has_written`] returns true when the buffer is written; an error is returned by the next write here. `None` if a thread writes.
    pub fn begin_write(&mut self) -> Result<Option<HandedOverBlock>> {
        if self.writes_behind() {
            return self.give_pending().map(|()| None);
        }
        let without_thread = || WriteBehind::without_thread(self.subfile.file().clone());
        self.write_behind.get_or_insert_with(without_thread);
        self.give()
    }

    /// As [`Self::write_pending`], but does not wait for a write-behind thread.
    pub(in super::super) fn give_pending(&mut self) -> Result<()> {
        if self.writes_behind() {
            return self.give().map(drop);
        }
        self.settle_content()?;
        self.settle()?;
        if !self.pending.is_empty() {
            self.subfile.file().write_at(&self.pending, self.offset())?;
            self.address += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// Returns true if a thread writes.
    pub(super) fn writes_behind(&self) -> bool {
        self.write_behind.as_ref().is_some_and(WriteBehind::has_thread)
    }

    /// Hands the buffer over to write-behind.
    fn give(&mut self) -> Result<Option<HandedOverBlock>> {
        self.settle_content()?;
        let (offset, size) = (self.offset(), self.pending.len());
        let Some(behind) = self.write_behind.as_ref().filter(|_| size > 0) else { return Ok(None) };
        let given = behind.give(&mut self.pending, offset)?;
        self.given = self.address;
        self.address += size as u64;
        Ok(given)
    }

    /// Offset of the buffer in the subfile.
    fn offset(&self) -> u64 {
        self.superblock.geometry.offset(self.lane.lane, self.address)
    }

    /// Writes content before an entry that references it: after a crash, no entry references missing content.
    fn settle_content(&mut self) -> Result<()> {
        if self.names_content {
            self.settle_streams()?;
        }
        self.names_content = false;
        Ok(())
    }

    pub(super) fn settle_streams(&mut self) -> Result<()> {
        self.content_lanes.as_mut().map_or(Ok(()), ContentLanes::settle)
    }

    /// Waits for write-behind.
    fn settle(&self) -> Result<()> {
        self.write_behind.as_ref().map_or(Ok(()), WriteBehind::settle)
    }
}
