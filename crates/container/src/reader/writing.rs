//! Writers of a container that the same process reads.

use super::Container;
use crate::format::codec::Codec;
use crate::format::listing::Listing;
use crate::index::{IndexBuilder, LaneEnd};
use crate::writer::LaneWriter;
use crate::writer::claim::{self, WriterId};
use crate::writer::content_lanes::ContentLanes;
use tameike_core::Result;

impl Container {
    /// Begins a writer, as [`LaneWriter::begin`] does, with compression by `codec`; this process reads through the writer's descriptors. A
    /// writer of kind [`WriterId::Host`] gets up to `streams` additional lanes for content, each in its own subfile with its own thread.
    pub fn begin_writer(&mut self, who: &WriterId, codec: Codec, streams: usize) -> Result<LaneWriter> {
        // The writer may claim lanes that have ended.
        self.known_ends.clear();
        let mut writer = LaneWriter::begin(&**self.records.fs(), self.records.superblock(), who)?;
        writer.set_codec(codec)?;
        self.records.read_as_written(writer.subfile());
        if let WriterId::Host(host) = who
            && streams > 0
        {
            writer.put_content_in(ContentLanes::new(self.records.clone(), host, streams, codec));
        }
        Ok(writer)
    }

    /// Ends a writer, and returns the ends of its lanes. They need no scan if each of the writer's entries was [added](Self::add).
    pub fn end_writer(&mut self, writer: LaneWriter) -> Result<Vec<LaneEnd>> {
        let ends = writer.finish()?;
        // A lane that another process used after the last scan has unknown entries: it is scanned.
        let followed: Vec<_> = ends.iter().filter(|end| self.follows_known_end(end)).copied().collect();
        self.record_ends(&followed);
        Ok(ends)
    }

    /// Returns true if a writer may still add to it: one that has neither finished nor is known to have failed.
    pub fn may_grow(&self) -> Result<bool> {
        claim::may_grow(&self.records)
    }

    /// Returns true if its writer failed: there is no index, and a lane is unfinished and held by no process.
    pub fn is_interrupted(&self) -> Result<bool> {
        if self.has_index() {
            return Ok(false);
        }
        for number in Listing::of(&**self.records.fs())?.numbers {
            let lanes = self.records.subfile(number)?.lanes()?;
            if lanes.iter().any(|lane| lane.is_open()) {
                // A process with read permission only cannot test the writer's lock.
                return Ok(!self.may_grow().unwrap_or(false));
            }
        }
        Ok(false)
    }

    /// Writes a new index, unless another process has written one that contains more. If that fails, the old index stays.
    pub fn write_index(&mut self) -> Result<()> {
        self.refresh_but(&self.complete_subfiles())?;
        let mut index = IndexBuilder::new(self.records.fs().clone(), self.superblock().container)?;
        self.walk()?.try_for_each(|entry| index.add(entry?))?;
        index.finish_unless_behind(&self.ends())
    }
}
