//! Writing: files go one after the other to the end of a lane.

use super::entry::{Content, Entry, Extent, Node, check_path};
use super::geometry::LaneId;
use super::record::{self, ALIGNMENT, FIXED_SIZE, Kind, Place, head_size};
use super::superblock::{SIZE, Superblock, subfile_name};
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// What is larger is not put into the rest of a block with its entry, but cut in pieces that fill blocks.
const TOGETHER_PART: usize = 4;
/// A rest of a block that is smaller gets no piece of a file.
const PIECE_SIZE_MIN: usize = 4 << 10;

/// A writer's part of a container. It keeps at most one block in memory; what is in there, and what was not yet made safe by
/// [`LaneWriter::sync`], is lost with the process.
pub struct LaneWriter {
    file: Arc<dyn SharedFile>,
    superblock: Superblock,
    lane: LaneId,
    /// Of the next record.
    sequence: u64,
    /// Of the first byte in `pending`.
    address: u64,
    /// What is before is safe.
    safe: u64,
    /// Records that are not written yet: they end before their block does.
    pending: Vec<u8>,
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
    /// A lane of which nobody has written anything, in a subfile that is made where it is missing.
    ///
    /// # Errors
    /// `EINVAL` when there is no such lane, and what the file system says.
    pub fn begin(fs: &dyn SharedFs, superblock: Superblock, lane: LaneId) -> Result<Self> {
        if lane.lane >= superblock.geometry.lanes {
            let message = format!("{lane}: it has {} lanes", superblock.geometry.lanes);
            return Err(Fault::new(Errno::EINVAL, message));
        }
        let name = subfile_name(lane.subfile);
        let file = match fs.create(&name, 0o644) {
            Ok(file) => {
                file.write_at(&superblock.encode(lane.subfile), 0)?;
                file
            }
            Err(fault) if fault.errno == Errno::EEXIST => fs.open(&name, Access::Write)?,
            Err(fault) => return Err(fault),
        };
        Ok(Self { file, superblock, lane, sequence: 0, address: 0, safe: 0, pending: Vec::new() })
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
            let message = format!("{}: it is in too many pieces", String::from_utf8_lossy(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        if record_span(encoded.len(), data.len()) > self.superblock.geometry.block_size as usize {
            let message = format!("{}: it does not fit a block", String::from_utf8_lossy(path));
            return Err(Fault::new(Errno::EFBIG, message));
        }
        let put = self.append(Kind::Entry, &encoded, data)?;
        Ok((entry, put))
    }

    /// Puts bytes of a file, which begin at `start` of it, and tells where they are. An entry must name them.
    ///
    /// # Errors
    /// What the file system says.
    pub fn put_pieces(&mut self, mut start: u64, mut data: &[u8], extents: &mut Vec<Extent>) -> Result<()> {
        while !data.is_empty() {
            let (piece, rest) = data.split_at(data.len().min(self.piece_size()));
            let put = self.append(Kind::Data, &[], piece)?;
            let length = piece.len() as u32;
            extents.push(Extent { start, length, lane: self.lane, address: put.address, skip: 0 });
            (start, data) = (start + u64::from(length), rest);
        }
        Ok(())
    }

    /// Makes all that was put safe.
    ///
    /// # Errors
    /// What the file system says: then nothing is known of what was put since the last time.
    pub fn sync(&mut self) -> Result<()> {
        self.write_pending()?;
        self.file.sync()?;
        self.safe = self.address;
        Ok(())
    }

    /// Largest content that is kept together with its entry.
    pub fn together_size(&self) -> usize {
        self.superblock.geometry.block_size as usize / TOGETHER_PART
    }

    /// Bytes of a file that fill the block in one piece, or the next one.
    pub fn piece_size(&self) -> usize {
        match self.room() {
            room if room < record_span(0, PIECE_SIZE_MIN) => {
                data_within(self.superblock.geometry.block_size as usize)
            }
            room => data_within(room),
        }
    }

    /// Whose it is.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Where the next record begins, and its number.
    pub fn end(&self) -> (u64, u64) {
        (self.address + self.pending.len() as u64, self.sequence)
    }

    /// Bytes left in the block.
    fn room(&self) -> usize {
        let (end, _) = self.end();
        (self.superblock.geometry.block_end(end) - end) as usize
    }

    fn append(&mut self, kind: Kind, entry: &[u8], data: &[u8]) -> Result<Put> {
        if record_span(entry.len(), data.len()) > self.room() {
            self.end_block()?;
        }
        let (address, _) = self.end();
        self.encode(kind, entry, data);
        if self.room() == self.superblock.geometry.block_size as usize {
            self.write_pending()?;
        }
        Ok(Put { address, size: (head_size(entry.len(), data.len()) + data.len()) as u32 })
    }

    fn encode(&mut self, kind: Kind, entry: &[u8], data: &[u8]) {
        let (address, sequence) = self.end();
        let place = Place { container: self.superblock.container, lane: self.lane, address, sequence };
        let unsafe_size = u32::try_from(address - self.safe).unwrap_or(u32::MAX);
        record::encode(&mut self.pending, kind, &place, unsafe_size, entry, data);
        self.sequence += 1;
    }

    /// Nothing more comes to the block.
    fn end_block(&mut self) -> Result<()> {
        let (end, _) = self.end();
        let next = self.superblock.geometry.block_end(end);
        if !end.is_multiple_of(self.superblock.geometry.block_size.into()) {
            self.encode(Kind::Rest, &[], &[]);
            self.write_pending()?;
            self.address = next;
        }
        Ok(())
    }

    pub(super) fn write_pending(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            let offset = self.superblock.geometry.offset(self.lane.lane, self.address);
            self.file.write_at(&self.pending, offset)?;
            self.address += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }
}

/// What a record takes of a block.
fn record_span(entry: usize, data: usize) -> usize {
    (head_size(entry, data) + data).next_multiple_of(ALIGNMENT as usize)
}

/// Most data of a record without an entry that fits in so many bytes.
fn data_within(room: usize) -> usize {
    let chunks = room.div_ceil(record::CHUNK_SIZE as usize);
    room - FIXED_SIZE - (head_size(0, chunks * record::CHUNK_SIZE as usize) - FIXED_SIZE)
}

const _: () = assert!(SIZE <= FIXED_SIZE && PIECE_SIZE_MIN > 0);
