//! A container that a process of this one reads while it adds to it.

use super::super::index::{IndexBuilder, LaneEnd};
use super::super::writer::LaneWriter;
use super::Container;
use crate::format::codec::Codec;
use crate::format::listing::Listing;
use crate::writer::claim;
use crate::writer::claim::WriterId;
use crate::writer::content_lanes::Streams;
use tameike_core::Result;

impl Container {
    /// Begins a writer, as [`LaneWriter::begin`] does, whose codec makes data smaller, where that pays; this process reads by its open files what it
    /// puts. A writer that is one of a host's has up to `streams` lanes for content beside that of its entries, each in a subfile of its own with a
    /// thread that writes.
    ///
    /// # Errors
    /// As [`LaneWriter::begin`].
    pub fn begin_writer(&mut self, who: &WriterId, codec: Codec, streams: usize) -> Result<LaneWriter> {
        // It may take lanes that have ended.
        self.told.clear();
        let mut writer = LaneWriter::begin(&**self.records.fs(), self.records.superblock(), who)?;
        writer.set_codec(codec)?;
        self.records.read_as_written(writer.subfile());
        if let WriterId::Host(host) = who
            && streams > 0
        {
            writer.put_content_in(Streams::new(self.records.clone(), host, streams, codec));
        }
        Ok(writer)
    }

    /// Ends a writer, and tells where its lanes end. Nothing of it needs to be read where each of its entries was [added](Self::add).
    ///
    /// # Errors
    /// As [`LaneWriter::finish`].
    pub fn end_writer(&mut self, writer: LaneWriter) -> Result<Vec<LaneEnd>> {
        let ends = writer.finish()?;
        // A lane that another process had, and ended since this one looked, has entries that are not known here: it is scanned.
        let followed: Vec<_> = ends.iter().filter(|end| self.goes_on(end)).copied().collect();
        self.tell_ends(&followed);
        Ok(ends)
    }

    /// Whether a writer may still add to it: one that has not ended, and of which nothing tells that it has died.
    ///
    /// # Errors
    /// What the file system says.
    pub fn may_grow(&self) -> Result<bool> {
        claim::may_grow(&self.records)
    }

    /// Whether its writer was cut off: it has no index, and a lane that has not ended and that nobody has any more.
    ///
    /// # Errors
    /// What the file system says.
    pub fn is_cut_off(&self) -> Result<bool> {
        if self.has_index() {
            return Ok(false);
        }
        for number in Listing::of(&**self.records.fs())?.numbers {
            let lanes = self.records.subfile(number)?.lanes()?;
            if lanes.iter().any(|lane| lane.life > 0 && !lane.is_finished) {
                // Who may only read cannot ask for the writer's lock.
                return Ok(!self.may_grow().unwrap_or(false));
            }
        }
        Ok(false)
    }

    /// Writes a new index of all that is there, unless another process has written one that has more.
    ///
    /// # Errors
    /// What the file system says; then the old one, if there is one, is still there.
    pub fn write_index(&mut self) -> Result<()> {
        self.refresh_but(&self.told_subfiles())?;
        let mut index = IndexBuilder::new(self.records.fs().clone(), self.superblock().container)?;
        self.walk()?.try_for_each(|entry| index.add(entry?))?;
        index.finish_unless_behind(&self.ends())
    }
}
