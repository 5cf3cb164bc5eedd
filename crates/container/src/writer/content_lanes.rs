//! Lanes for content beside the lane of the entries, so that one writer uses several files of the file system in parallel.
//!
//! Lanes are filled round-robin, a block (or a portion of a large one) at a time: while one is filled, the others are written. A lane is added
//! when all existing ones have writes in flight.

#[cfg(test)]
mod tests;

use super::{LaneWriter, PORTION_BEHIND};
use crate::format::codec::Codec;
use crate::format::entry::Extent;
use crate::format::geometry::LaneId;
use crate::index::LaneEnd;
use crate::reader::records::Records;
use std::sync::Arc;
use tameike_core::Result;

/// Memory of all lanes, each with one buffer that is filled and one that is written.
const MEMORY_MAX: usize = 128 << 20;

/// The content lanes of one writer.
pub struct ContentLanes {
    records: Arc<Records>,
    host: String,
    most: usize,
    codec: Codec,
    lanes: Vec<LaneWriter>,
    /// Index of the lane that is filled.
    filled: usize,
}

impl ContentLanes {
    /// For a writer of `host`. At most `most` lanes, fewer for large blocks; the first one begins with the first content.
    pub fn new(records: Arc<Records>, host: &str, most: usize, codec: Codec) -> Self {
        let portion = PORTION_BEHIND.min(records.superblock().geometry.block_size as usize);
        let most = most.min(MEMORY_MAX / (2 * portion)).max(1);
        Self { records, host: host.to_owned(), most, codec, lanes: Vec::new(), filled: 0 }
    }

    /// As [`LaneWriter::put_pieces`]. `own` is the lane of the entries.
    pub fn put_pieces(
        &mut self,
        own: LaneId,
        mut start: u64,
        mut data: &[u8],
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        while !data.is_empty() {
            let piece = self.lane(own)?.put_piece(start, data)?;
            data = &data[piece.length as usize..];
            start = piece.end();
            extents.push(piece);
        }
        Ok(())
    }

    /// The lane to fill.
    fn lane(&mut self, own: LaneId) -> Result<&mut LaneWriter> {
        let is_begun = self.lanes.get(self.filled).is_some_and(LaneWriter::is_filled);
        if !is_begun {
            self.filled = match self.lanes.iter().position(LaneWriter::is_written) {
                Some(free) => free,
                None if self.lanes.is_empty() => self.begin(own)?,
                None if self.lanes.len() < self.most => self.begin(own).unwrap_or_else(|fault| {
                    log::debug!("cannot use more than {} subfiles for content: {fault}", self.lanes.len());
                    self.most = self.lanes.len();
                    0
                }),
                // The lane whose buffer was handed over first.
                None => (self.filled + 1) % self.lanes.len(),
            };
        }
        Ok(&mut self.lanes[self.filled])
    }

    /// Begins a lane in another subfile; returns its index.
    fn begin(&mut self, own: LaneId) -> Result<usize> {
        let taken: Vec<_> = self.lanes.iter().map(|lane| lane.lane().subfile).chain([own.subfile]).collect();
        let (fs, superblock) = (&**self.records.fs(), self.records.superblock());
        let mut lane = LaneWriter::begin_on_host(fs, superblock, &self.host, &taken)?;
        lane.set_codec(self.codec)?;
        if let Err(fault) = lane.write_behind() {
            log::debug!("cannot start a write-behind thread; content is written synchronously: {fault}");
        }
        self.records.read_as_written(lane.subfile());
        self.lanes.push(lane);
        Ok(self.lanes.len() - 1)
    }

    /// Writes all content to the file system. A failure in one lane does not stop the other lanes.
    pub fn settle(&mut self) -> Result<()> {
        // Hand over all buffers first, so that the lanes are written in parallel.
        let given: Vec<_> = self.lanes.iter_mut().map(LaneWriter::give_pending).collect();
        let settled: Vec<_> = self.lanes.iter_mut().map(LaneWriter::write_pending).collect();
        given.into_iter().chain(settled).collect()
    }

    /// The writers of the lanes.
    pub fn lanes(&self) -> &[LaneWriter] {
        &self.lanes
    }

    /// The writer of a lane.
    pub fn lane_mut(&mut self, id: LaneId) -> Option<&mut LaneWriter> {
        self.lanes.iter_mut().find(|lane| lane.lane() == id)
    }

    /// As [`LaneWriter::finish`].
    pub fn finish(self) -> Result<Vec<LaneEnd>> {
        let ends: Result<Vec<_>> = self.lanes.into_iter().map(LaneWriter::finish).collect();
        ends.map(|ends| ends.into_iter().flatten().collect())
    }
}
