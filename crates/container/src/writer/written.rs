//! What was put comes to the subfile: written at once, by a thread, or by who waits for it.

use super::LaneWriter;
use super::content_lanes::Streams;
use super::write_behind::{Behind, Given};
use crate::format::geometry::LaneId;
use tameike_core::Result;

impl LaneWriter {
    /// Whether the record that it has put at an address is in the subfile.
    pub fn has_written(&self, address: u64) -> bool {
        address < self.given || (address < self.address && self.behind.as_ref().is_none_or(Behind::is_free))
    }

    /// Has the record at an address, if it is this writer's, be in the subfile, where it can be read.
    ///
    /// # Errors
    /// What the file system says.
    pub fn hand_over(&mut self, lane: LaneId, address: u64) -> Result<()> {
        match self.of_lane(lane) {
            // Whatever has become of what was put since.
            Some(writer) if writer.has_written(address) => Ok(()),
            Some(writer) if address >= writer.address => writer.write_pending(),
            Some(writer) => writer.settle(),
            None => Ok(()),
        }
    }

    /// Writes what is in memory, so that who reads the subfile finds it. It is not safe by that.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write_pending(&mut self) -> Result<()> {
        self.give_pending()?;
        self.settle()
    }

    /// Gives what is in memory to the caller, who writes it without the writer: records that are put meanwhile wait for one another, and
    /// go together. [`Self::has_written`] tells when it is there; what the file system says, the next that is written here does. Nothing
    /// where a thread writes.
    ///
    /// # Errors
    /// What it says of what was given before.
    pub fn begin_write(&mut self) -> Result<Option<Given>> {
        if self.writes_behind() {
            return self.give_pending().map(|()| None);
        }
        let without_thread = || Behind::without_thread(self.subfile.file().clone());
        self.behind.get_or_insert_with(without_thread);
        self.give()
    }

    /// As [`Self::write_pending`], but that a thread may still be at it.
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

    /// Whether a thread writes.
    pub(super) fn writes_behind(&self) -> bool {
        self.behind.as_ref().is_some_and(Behind::has_thread)
    }

    /// Gives what is in memory to who writes behind.
    fn give(&mut self) -> Result<Option<Given>> {
        self.settle_content()?;
        let (offset, size) = (self.offset(), self.pending.len());
        let Some(behind) = self.behind.as_ref().filter(|_| size > 0) else { return Ok(None) };
        let given = behind.give(&mut self.pending, offset)?;
        self.given = self.address;
        self.address += size as u64;
        Ok(given)
    }

    /// Where in the subfile that goes which is in memory.
    fn offset(&self) -> u64 {
        self.superblock.geometry.offset(self.lane.lane, self.address)
    }

    /// Content is with the file system before an entry that tells of it: no entry tells of what a writer that dies has not written.
    fn settle_content(&mut self) -> Result<()> {
        if self.names_content {
            self.settle_streams()?;
        }
        self.names_content = false;
        Ok(())
    }

    pub(super) fn settle_streams(&mut self) -> Result<()> {
        self.streams.as_mut().map_or(Ok(()), Streams::settle)
    }

    /// What was given is written.
    fn settle(&self) -> Result<()> {
        self.behind.as_ref().map_or(Ok(()), Behind::settle)
    }
}
