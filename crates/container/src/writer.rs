//! Writing: files go one after the other to the end of a lane.

pub mod claim;
pub mod content_lanes;
pub mod indexed;
mod sync;
pub mod write_behind;
mod written;

pub use sync::UnsafePart;

use crate::display::shown;
use crate::format::codec::{Codec, Packer};
use crate::format::entry::{Content, Entry, Extent, Node, check_path};
use crate::format::geometry::LaneId;
use crate::format::record;
use crate::format::record::{ALIGNMENT, Kind, Payload, Place, first_sequence, head_size};
use crate::format::subfile::{Claim, Subfile};
use crate::format::superblock::Superblock;
use content_lanes::Streams;
use tameike_core::{Errno, Fault, Result};
use write_behind::Behind;

/// What is more than this part of a block is never kept with its entry, but cut in pieces that fill blocks.
const TOGETHER_PART: usize = 4;
/// A rest that is less than this part of one may stay blank, so that content is kept with its entry.
const BLANK_PART: usize = 32;
/// What is larger is not kept with its entry where content has lanes of its own.
const TOGETHER_SIZE_MAX: usize = 32 << 10;
/// Most entries are no larger.
const ENTRY_SIZE: usize = 1 << 10;
/// Bytes in memory that are written though their block goes on, where nobody writes behind; and most that one piece of a file has.
const PORTION: usize = 4 << 20;
/// The same where a thread writes behind.
pub(super) const PORTION_BEHIND: usize = 16 << 20;
/// A rest of a block that is smaller gets no piece of a file.
const PIECE_SIZE_MIN: usize = 4 << 10;

/// A writer's part of a container. It keeps less than 4 MiB in memory, and one record; of a lane that is written behind, two blocks, or twice 16 MiB
/// and a record. What is in there, and what was not yet made safe by [`LaneWriter::sync`], is lost with the process.
pub struct LaneWriter {
    subfile: Subfile,
    superblock: Superblock,
    lane: LaneId,
    /// Of the next record.
    sequence: u64,
    /// Of the first byte in `pending`.
    address: u64,
    /// What its life has before is safe.
    safe: u64,
    /// Records that are not written yet: of one block.
    pending: Vec<u8>,
    packer: Packer,
    /// Writes it, unless it is written before the writer goes on.
    behind: Option<Behind>,
    /// All before is in the subfile; from here to `address` is what was given last to be written behind.
    given: u64,
    /// Entries in `pending` name content of other lanes of this writer.
    names_content: bool,
    /// Where content goes, unless it goes here.
    streams: Option<Streams>,
}

/// Where a record was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Where it begins.
    pub address: u64,
    /// Its bytes: head and data.
    pub size: u32,
}

impl LaneWriter {
    /// Begins a lane of a subfile that this writer alone has open. Nothing when somebody else has the lane.
    ///
    /// # Errors
    /// `EINVAL` when there is no such lane, and as [`Subfile::claim`].
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
        let Claim::Taken { life, address } = subfile.claim(lane, needs_lock)? else { return Ok(None) };
        let sequence = first_sequence(life);
        Ok(Some(Self {
            subfile,
            superblock,
            lane: id,
            sequence,
            address,
            safe: address,
            pending: Vec::new(),
            packer: Packer::new(Codec::None)?,
            behind: None,
            given: address,
            names_content: false,
            streams: None,
        }))
    }

    /// From now on a thread writes: blocks are filled meanwhile.
    ///
    /// # Errors
    /// The user may not have another thread.
    pub fn write_behind(&mut self) -> Result<()> {
        self.behind = Some(Behind::new(self.subfile.file().clone())?);
        Ok(())
    }

    /// From now on content that is not small goes to lanes of its own.
    pub(super) fn put_content_in(&mut self, streams: Streams) {
        self.streams = Some(streams);
    }

    /// From now on data is made smaller by a codec, where that pays.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set_codec(&mut self, codec: Codec) -> Result<()> {
        self.packer = Packer::new(codec)?;
        Ok(())
    }

    /// Puts a path and all of its content. Gives the record of the entry.
    ///
    /// # Errors
    /// `EINVAL` when the path is none of a file; `EFBIG` when the file has too many pieces; what the file system says.
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

    /// Puts what a path is now, with its content where that is [`Content::Here`].
    ///
    /// # Errors
    /// As [`Self::put`].
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
            let message = format!("{}: it is in too many pieces", shown(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        if record_span(encoded.len(), data.len()) > self.superblock.geometry.block_size as usize {
            let message = format!("{}: it does not fit a block", shown(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        self.names_content |= self.streams.is_some() && entry.names_content();
        let put = self.append(Kind::Entry, &encoded, data)?;
        Ok((entry, put))
    }

    /// Puts bytes of a file, which begin at `start` of it, and tells where they are. An entry must name them.
    ///
    /// # Errors
    /// What the file system says.
    pub fn put_pieces(&mut self, mut start: u64, mut data: &[u8], extents: &mut Vec<Extent>) -> Result<()> {
        if let Some(streams) = &mut self.streams {
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

    /// Puts as much of these bytes as one record takes.
    pub(super) fn put_piece(&mut self, start: u64, data: &[u8]) -> Result<Extent> {
        let piece = &data[..data.len().min(self.piece_size())];
        let put = self.append(Kind::Data, &[], piece)?;
        Ok(Extent { start, length: piece.len() as u32, lane: self.lane, address: put.address, skip: 0 })
    }

    /// Largest content that is kept together with its entry, wherever that goes.
    pub fn together_size_max(&self) -> usize {
        let part = (self.block_size() / TOGETHER_PART).min(PORTION);
        if self.streams.is_some() { part.min(TOGETHER_SIZE_MAX) } else { part }
    }

    /// Largest content that is kept together with the next entry.
    pub fn together_size(&self) -> usize {
        let may_stay_blank = (self.block_size() / BLANK_PART).max(record_span(0, PIECE_SIZE_MIN));
        match self.room() {
            // How much smaller it becomes is not known here.
            _ if self.streams.is_some() || self.packer.codec() != Codec::None => self.together_size_max(),
            room if room < may_stay_blank => self.together_size_max(),
            room => data_within(room).saturating_sub(ENTRY_SIZE).min(self.together_size_max()),
        }
    }

    /// Bytes of a file that the next piece takes: the rest of the block, or of the next one, as far as that is no more than a portion.
    pub fn piece_size(&self) -> usize {
        let room = match self.room() {
            room if room < record_span(0, PIECE_SIZE_MIN) => self.block_size(),
            room => room,
        };
        data_within(room).min(PORTION)
    }

    /// The file that it writes to.
    pub(super) fn subfile(&self) -> &Subfile {
        &self.subfile
    }

    /// Where entries go.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Whether a lane is this writer's.
    pub fn has(&self, lane: LaneId) -> bool {
        self.lane == lane || self.content_lanes().iter().any(|writer| writer.lane == lane)
    }

    /// Whether a piece of a file is safe, as far as that is this writer's to know.
    pub fn is_safe(&self, piece: &Extent) -> bool {
        let safe = match self.lane == piece.lane {
            true => Some(self.safe),
            false => {
                self.content_lanes().iter().find(|writer| writer.lane == piece.lane).map(|writer| writer.safe)
            }
        };
        safe.is_none_or(|safe| piece.address < safe)
    }

    /// Whether some is in memory, and more may come there.
    pub(super) fn is_filled(&self) -> bool {
        !self.pending.is_empty() && !self.is_due()
    }

    /// Whether what is in memory is written before anything else is put there.
    fn is_due(&self) -> bool {
        self.pending.len() >= self.portion() || self.end() == self.superblock.geometry.block_end(self.address)
    }

    fn portion(&self) -> usize {
        if self.writes_behind() { PORTION_BEHIND } else { PORTION }
    }

    /// Whether nothing of it is on its way to the subfile, or waits for that.
    pub(super) fn is_written(&self) -> bool {
        self.pending.is_empty() && self.behind.as_ref().is_none_or(Behind::is_free)
    }

    fn content_lanes(&self) -> &[Self] {
        self.streams.as_ref().map_or(&[], Streams::lanes)
    }

    /// Who writes a lane: this writer, or one for content.
    fn of_lane(&mut self, lane: LaneId) -> Option<&mut Self> {
        if self.lane == lane { Some(self) } else { self.streams.as_mut()?.lane_mut(lane) }
    }

    /// Where the next record begins.
    pub fn end(&self) -> u64 {
        self.address + self.pending.len() as u64
    }

    fn block_size(&self) -> usize {
        self.superblock.geometry.block_size as usize
    }

    /// Bytes left in the block.
    fn room(&self) -> usize {
        let end = self.end();
        (self.superblock.geometry.block_end(end) - end) as usize
    }

    fn append(&mut self, kind: Kind, entry: &[u8], data: &[u8]) -> Result<Put> {
        if self.is_due() {
            // It could not be written.
            self.give_pending()?;
        }
        let payload = Payload::new(data, &mut self.packer);
        let size = head_size(entry.len(), data.len()) + payload.kept_size();
        if size.next_multiple_of(ALIGNMENT as usize) > self.room() {
            self.end_block()?;
        }
        let address = self.end();
        self.encode(kind, entry, &payload);
        if self.is_due() {
            // The record is put all the same: who asks for the next one, or has all written, is told.
            let _ = self.give_pending();
            if !self.writes_behind() {
                self.subfile.file().start_write_back();
            }
        }
        Ok(Put { address, size: size as u32 })
    }

    fn encode(&mut self, kind: Kind, entry: &[u8], payload: &Payload<'_>) {
        let (address, sequence) = (self.end(), self.sequence);
        let place = Place { container: self.superblock.container, lane: self.lane, address, sequence };
        let unsafe_size = u32::try_from(address - self.safe).unwrap_or(u32::MAX);
        record::encode(&mut self.pending, kind, &place, unsafe_size, entry, payload);
        self.sequence += 1;
    }

    /// Nothing more comes to the block.
    fn end_block(&mut self) -> Result<()> {
        let end = self.end();
        let next = self.superblock.geometry.block_end(end);
        if !end.is_multiple_of(self.superblock.geometry.block_size.into()) {
            let (size, sequence) = (self.pending.len(), self.sequence);
            self.encode(Kind::Rest, &[], &Payload::default());
            if let Err(fault) = self.give_pending() {
                // Who reads the lane looks for nothing behind it: what is put next takes its place.
                self.pending.truncate(size);
                self.sequence = sequence;
                return Err(fault);
            }
            self.address = next;
        }
        Ok(())
    }

    /// Has room for records of so many bytes in the block: then putting them fails for nothing that the file system says. A block that
    /// is smaller is only empty.
    ///
    /// # Errors
    /// What the file system says; then nothing was put.
    pub fn make_room(&mut self, size: usize) -> Result<()> {
        if self.is_due() || self.pending.len() + size > self.portion() {
            self.give_pending()?;
        }
        if size > self.room() { self.end_block() } else { Ok(()) }
    }
}

/// What a record takes of a block.
fn record_span(entry: usize, data: usize) -> usize {
    (head_size(entry, data) + data).next_multiple_of(ALIGNMENT as usize)
}

/// Most data of a record without an entry that fits in so many bytes.
fn data_within(room: usize) -> usize {
    let chunks = room.div_ceil(record::CHUNK_SIZE as usize);
    room.saturating_sub(head_size(0, chunks * record::CHUNK_SIZE as usize))
}
