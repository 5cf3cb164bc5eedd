//! Lanes for content beside the lane of the entries, so that one writer has a file system serve it by several files at the same time.
//!
//! They take turns with blocks, or portions of long ones: while one is being filled, those before are written. Another one is begun when all that
//! there are have one on its way.

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

/// Memory: each lane has a block, or a portion, that is filled and one that is written.
const MEMORY_MAX: usize = 128 << 20;

/// The lanes.
pub struct Streams {
    records: Arc<Records>,
    host: String,
    most: usize,
    codec: Codec,
    lanes: Vec<LaneWriter>,
    /// Which one is filled.
    filled: usize,
}

impl Streams {
    /// None yet, of at most so many, fewer where blocks are large, for a writer of a host.
    pub fn new(records: Arc<Records>, host: &str, most: usize, codec: Codec) -> Self {
        let portion = PORTION_BEHIND.min(records.superblock().geometry.block_size as usize);
        let most = most.min(MEMORY_MAX / (2 * portion)).max(1);
        Self { records, host: host.to_owned(), most, codec, lanes: Vec::new(), filled: 0 }
    }

    /// As [`LaneWriter::put_pieces`]. `own` is the lane of the entries.
    ///
    /// # Errors
    /// What the file system says.
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

    /// The lane that is to be filled.
    fn lane(&mut self, own: LaneId) -> Result<&mut LaneWriter> {
        let is_begun = self.lanes.get(self.filled).is_some_and(LaneWriter::is_filled);
        if !is_begun {
            self.filled = match self.lanes.iter().position(LaneWriter::is_written) {
                Some(free) => free,
                None if self.lanes.is_empty() => self.begin(own)?,
                None if self.lanes.len() < self.most => self.begin(own).unwrap_or_else(|fault| {
                    log::debug!("content goes to {} subfiles: {fault}", self.lanes.len());
                    self.most = self.lanes.len();
                    0
                }),
                // It was given its own first.
                None => (self.filled + 1) % self.lanes.len(),
            };
        }
        Ok(&mut self.lanes[self.filled])
    }

    /// Begins one more, in a subfile of its own: its number.
    fn begin(&mut self, own: LaneId) -> Result<usize> {
        let taken: Vec<_> = self.lanes.iter().map(|lane| lane.lane().subfile).chain([own.subfile]).collect();
        let (fs, superblock) = (&**self.records.fs(), self.records.superblock());
        let mut lane = LaneWriter::begin_on_host(fs, superblock, &self.host, &taken)?;
        lane.set_codec(self.codec)?;
        if let Err(fault) = lane.write_behind() {
            log::debug!("content is written by who puts it: {fault}");
        }
        self.records.read_as_written(lane.subfile());
        self.lanes.push(lane);
        Ok(self.lanes.len() - 1)
    }

    /// All that was put is with the file system then.
    ///
    /// # Errors
    /// What the file system says; the rest is there all the same.
    pub fn settle(&mut self) -> Result<()> {
        // All at the same time.
        let given: Vec<_> = self.lanes.iter_mut().map(LaneWriter::give_pending).collect();
        let settled: Vec<_> = self.lanes.iter_mut().map(LaneWriter::write_pending).collect();
        given.into_iter().chain(settled).collect()
    }

    /// The lanes.
    pub fn lanes(&self) -> &[LaneWriter] {
        &self.lanes
    }

    /// One of them.
    pub fn lane_mut(&mut self, id: LaneId) -> Option<&mut LaneWriter> {
        self.lanes.iter_mut().find(|lane| lane.lane() == id)
    }

    /// As [`LaneWriter::finish`].
    ///
    /// # Errors
    /// The same.
    pub fn finish(self) -> Result<Vec<LaneEnd>> {
        let ends: Result<Vec<_>> = self.lanes.into_iter().map(LaneWriter::finish).collect();
        ends.map(|ends| ends.into_iter().flatten().collect())
    }
}
