//! Appends records to a lane.

pub mod claim;
pub mod content_lanes;
pub mod indexed;
mod sync;
pub mod write_behind;
mod written;

pub use sync::UnsyncedRecords;

use crate::display::shown;
use crate::format::codec::{Codec, Packer};
use crate::format::entry::{Content, Entry, Extent, Node, check_path};
use crate::format::geometry::LaneId;
use crate::format::record::{self, ALIGNMENT, Kind, Payload, Position, first_sequence, head_size};
use crate::format::subfile::{Claim, Subfile};
use crate::format::superblock::Superblock;
use content_lanes::ContentLanes;
use tameike_core::{Errno, Fault, Result};
use write_behind::WriteBehind;

/// Content larger than a block divided by this is never kept in the record of its entry, but split into pieces that fill blocks.
const TOGETHER_PART: usize = 4;
/// A block's rest smaller than the block divided by this may stay unused, so that content is kept with its entry.
const BLANK_PART: usize = 32;
/// Maximum size of content kept with its entry if there are content lanes.
const TOGETHER_SIZE_MAX: usize = 32 << 10;
/// Entries are rarely larger.
const ENTRY_SIZE: usize = 1 << 10;
/// Bytes in memory that are written before their block is full, without write-behind; also the maximum size of a piece.
const PORTION: usize = 4 << 20;
/// The same with a write-behind thread.
pub(super) const PORTION_BEHIND: usize = 16 << 20;
/// Minimum size of a piece: a smaller rest of a block stays unused.
const PIECE_SIZE_MIN: usize = 4 << 10;

/// The writer of a lane. It buffers less than 4 MiB and one record; with write-behind, two blocks, or two times 16 MiB and a record. A crash
/// of the process loses the buffer; a power failure loses everything not synced by [`LaneWriter::sync`].
pub struct LaneWriter {
    subfile: Subfile,
    superblock: Superblock,
    lane: LaneId,
    /// Sequence number of the next record.
    sequence: u64,
    /// Address of the first byte in `pending`.
    address: u64,
    /// Records of this incarnation before this address are durable.
    durable_end: u64,
    /// Records of one block that are not written yet.
    pending: Vec<u8>,
    packer: Packer,
    /// Write-behind; without it, writes are synchronous.
    write_behind: Option<WriteBehind>,
    /// Everything before is in the subfile; from here to `address`, write-behind may be in flight.
    given: u64,
    /// Entries in `pending` reference content in other lanes of this writer.
    names_content: bool,
    /// Lanes for content; without them, content goes to this lane.
    content_lanes: Option<ContentLanes>,
}

/// Location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Address in the lane.
    pub address: u64,
    /// Size of head and data, in bytes.
    pub size: u32,
}

impl LaneWriter {
    /// Claims a lane of a subfile that only this writer has open. Returns `None` if another process holds the lane. Fails with `EINVAL` if
    /// there is no such lane.
    pub fn claim(
        subfile: Subfile,
        superblock: Superblock,
        lane: u32,
        needs_lock: bool,
    ) -> Result<Option<Self>> {
        let id = subfile.lane(lane);
        if lane >= superblock.geometry.lanes {
            let message = format!("{id}: it has {} lanes", superblock.geometry.lanes);
            return Err(Fault::new(Errno::EINVAL, message));
        }
        let Claim::Taken { incarnation, address } = subfile.claim(lane, needs_lock)? else { return Ok(None) };
        let sequence = first_sequence(incarnation);
        Ok(Some(Self {
            subfile,
            superblock,
            lane: id,
            sequence,
            address,
            durable_end: address,
            pending: Vec::new(),
            packer: Packer::new(Codec::None)?,
            write_behind: None,
            given: address,
            names_content: false,
            content_lanes: None,
        }))
    }

    /// Starts a write-behind thread: it writes one block while the next one is filled.
    pub fn write_behind(&mut self) -> Result<()> {
        self.write_behind = Some(WriteBehind::new(self.subfile.file().clone())?);
        Ok(())
    }

    /// Puts content that is not small to lanes of its own.
    pub(super) fn put_content_in(&mut self, streams: ContentLanes) {
        self.content_lanes = Some(streams);
    }

    /// Compresses data with a codec, where that pays.
    pub fn set_codec(&mut self, codec: Codec) -> Result<()> {
        self.packer = Packer::new(codec)?;
        Ok(())
    }

    /// Puts a file with all of its content. Returns the entry and its location. Fails with `EINVAL` if the path is invalid, and with
    /// `EFBIG` if the file has too many extents.
    pub fn put(&mut self, path: &[u8], version: u64, mut node: Node, data: &[u8]) -> Result<(Entry, Put)> {
        node.size = data.len() as u64;
        node.content = Content::Here;
        if data.len() > self.together_size() {
            let mut extents = Vec::new();
            self.put_pieces(0, data, &mut extents)?;
            node.content = Content::Extents(extents);
            return self.put_entry(path, version, Some(node), &[]);
        }
        self.put_entry(path, version, Some(node), data)
    }

    /// Puts an entry; `data` is its content if that is [`Content::Here`].
    pub fn put_entry(
        &mut self,
        path: &[u8],
        version: u64,
        node: Option<Node>,
        data: &[u8],
    ) -> Result<(Entry, Put)> {
        check_path(path)?;
        let entry = Entry { path: path.to_vec(), version, node };
        let encoded = entry.encode();
        if encoded.len() > record::ENTRY_SIZE_MAX {
            let message = format!("{}: it has too many extents", shown(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        if record_span(encoded.len(), data.len()) > self.superblock.geometry.block_size as usize {
            let message = format!("{}: its record does not fit into a block", shown(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        self.names_content |= self.content_lanes.is_some() && entry.names_content();
        let put = self.append(Kind::Entry, &encoded, data)?;
        Ok((entry, put))
    }

    /// Puts content that begins at offset `start` of a file, and appends its location to `extents`. An entry must reference it.
    pub fn put_pieces(&mut self, mut start: u64, mut data: &[u8], extents: &mut Vec<Extent>) -> Result<()> {
        if let Some(streams) = &mut self.content_lanes {
            return streams.put_pieces(self.lane, start, data, extents);
        }
        while !data.is_empty() {
            let piece = self.put_piece(start, data)?;
            data = &data[piece.length as usize..];
            start = piece.end();
            extents.push(piece);
        }
        Ok(())
    }

    /// Puts as many of these bytes as fit in one record.
    pub(super) fn put_piece(&mut self, start: u64, data: &[u8]) -> Result<Extent> {
        let piece = &data[..data.len().min(self.piece_size())];
        let put = self.append(Kind::Data, &[], piece)?;
        Ok(Extent { start, length: piece.len() as u32, lane: self.lane, address: put.address, skip: 0 })
    }

    /// Maximum size of content kept with its entry, at any position.
    pub fn together_size_max(&self) -> usize {
        let part = (self.block_size() / TOGETHER_PART).min(PORTION);
        if self.content_lanes.is_some() { part.min(TOGETHER_SIZE_MAX) } else { part }
    }

    /// Maximum size of content kept with the next entry.
    pub fn together_size(&self) -> usize {
        let may_stay_blank = (self.block_size() / BLANK_PART).max(record_span(0, PIECE_SIZE_MIN));
        match self.block_rest() {
            // The compressed size is not known here.
            _ if self.content_lanes.is_some() || self.packer.codec() != Codec::None => {
                self.together_size_max()
            }
            rest if rest < may_stay_blank => self.together_size_max(),
            rest => data_within(rest).saturating_sub(ENTRY_SIZE).min(self.together_size_max()),
        }
    }

    /// Size of the next piece of content: the rest of this block, or the next block, up to 4 MiB.
    pub fn piece_size(&self) -> usize {
        let rest = match self.block_rest() {
            rest if rest < record_span(0, PIECE_SIZE_MIN) => self.block_size(),
            rest => rest,
        };
        data_within(rest).min(PORTION)
    }

    /// The subfile of the lane.
    pub(super) fn subfile(&self) -> &Subfile {
        &self.subfile
    }

    /// The lane of the entries.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Returns true if a lane belongs to this writer.
    pub fn has(&self, lane: LaneId) -> bool {
        self.lane == lane || self.content_lanes().iter().any(|writer| writer.lane == lane)
    }

    /// Returns false if a piece was put by this writer and is not durable yet.
    pub fn is_durable(&self, piece: &Extent) -> bool {
        let durable_end = match self.lane == piece.lane {
            true => Some(self.durable_end),
            false => self
                .content_lanes()
                .iter()
                .find(|writer| writer.lane == piece.lane)
                .map(|writer| writer.durable_end),
        };
        durable_end.is_none_or(|end| piece.address < end)
    }

    /// Returns true if the buffer is partly filled.
    pub(super) fn is_filled(&self) -> bool {
        !self.pending.is_empty() && !self.is_due()
    }

    /// Returns true if the buffer must be written before anything else is put.
    fn is_due(&self) -> bool {
        self.pending.len() >= self.portion() || self.end() == self.superblock.geometry.block_end(self.address)
    }

    fn portion(&self) -> usize {
        if self.writes_behind() { PORTION_BEHIND } else { PORTION }
    }

    /// Returns true if the buffer is empty and no write-behind is in flight.
    pub(super) fn is_written(&self) -> bool {
        self.pending.is_empty() && self.write_behind.as_ref().is_none_or(WriteBehind::is_free)
    }

    fn content_lanes(&self) -> &[Self] {
        self.content_lanes.as_ref().map_or(&[], ContentLanes::lanes)
    }

    /// The writer of a lane: this one, or one of its content lanes.
    fn of_lane(&mut self, lane: LaneId) -> Option<&mut Self> {
        if self.lane == lane { Some(self) } else { self.content_lanes.as_mut()?.lane_mut(lane) }
    }

    /// Address of the next record.
    pub fn end(&self) -> u64 {
        self.address + self.pending.len() as u64
    }

    fn block_size(&self) -> usize {
        self.superblock.geometry.block_size as usize
    }

    /// Bytes left in the block.
    fn block_rest(&self) -> usize {
        let end = self.end();
        (self.superblock.geometry.block_end(end) - end) as usize
    }

    fn append(&mut self, kind: Kind, entry: &[u8], data: &[u8]) -> Result<Put> {
        if self.is_due() {
            // An earlier write has failed.
            self.give_pending()?;
        }
        let payload = Payload::new(data, &mut self.packer);
        let size = head_size(entry.len(), data.len()) + payload.stored_size();
        if size.next_multiple_of(ALIGNMENT as usize) > self.block_rest() {
            self.end_block()?;
        }
        let address = self.end();
        self.encode(kind, entry, &payload);
        if self.is_due() {
            // The record is put all the same; the next put or write returns the error.
            let _ = self.give_pending();
            if !self.writes_behind() {
                self.subfile.file().start_write_back();
            }
        }
        Ok(Put { address, size: size as u32 })
    }

    fn encode(&mut self, kind: Kind, entry: &[u8], payload: &Payload<'_>) {
        let (address, sequence) = (self.end(), self.sequence);
        let position = Position { container: self.superblock.container, lane: self.lane, address, sequence };
        let unsynced_size = u32::try_from(address - self.durable_end).unwrap_or(u32::MAX);
        record::encode(&mut self.pending, kind, &position, unsynced_size, entry, payload);
        self.sequence += 1;
    }

    /// Fills the rest of the block, so that the next record begins in the next block.
    fn end_block(&mut self) -> Result<()> {
        let end = self.end();
        let next = self.superblock.geometry.block_end(end);
        if !end.is_multiple_of(self.superblock.geometry.block_size.into()) {
            let (size, sequence) = (self.pending.len(), self.sequence);
            self.encode(Kind::Rest, &[], &Payload::default());
            if let Err(fault) = self.give_pending() {
                // Scans skip what follows a `Rest` record, so the next record must replace it.
                self.pending.truncate(size);
                self.sequence = sequence;
                return Err(fault);
            }
            self.address = next;
        }
        Ok(())
    }

    /// Reserves `size` bytes in the block, so that putting records of that size cannot fail by an error of the file system. A smaller block
    /// is only made empty. If that fails, nothing was put.
    pub fn reserve(&mut self, size: usize) -> Result<()> {
        if self.is_due() || self.pending.len() + size > self.portion() {
            self.give_pending()?;
        }
        if size > self.block_rest() { self.end_block() } else { Ok(()) }
    }
}

/// Bytes that a record takes in a block.
fn record_span(entry: usize, data: usize) -> usize {
    (head_size(entry, data) + data).next_multiple_of(ALIGNMENT as usize)
}

/// Maximum size of the data of a record without an entry that takes `span` bytes.
fn data_within(span: usize) -> usize {
    let chunks = span.div_ceil(record::CHUNK_SIZE as usize);
    span.saturating_sub(head_size(0, chunks * record::CHUNK_SIZE as usize))
}
