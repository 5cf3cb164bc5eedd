//! Reading a file of a container.

use super::codec::unpack;
use super::entry::{Content, Extent, Node};
use super::index::IndexEntry;
use super::outside::{Identity, OutsideContent};
use super::record::{self, CHUNK_SIZE, Head};
use super::records::{Records, not_there};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result};

/// Chunks that are read at once, also when less is asked for.
const CHUNKS_AHEAD: usize = 4;
/// Bytes of data that are read with the head of their record.
const AHEAD_SIZE: usize = CHUNKS_AHEAD * CHUNK_SIZE as usize;

/// Is shown bytes of a file, and where in it they are.
pub type Show<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// A file of a container that is open. It keeps a few chunks of one record in memory.
pub struct FileReader {
    records: Arc<Records>,
    node: Node,
    extents: Vec<Extent>,
    piece: Option<Piece>,
    /// What no record has.
    outside: Option<OutsideContent>,
}

/// Opens files of a container, whatever is done to what is known of it meanwhile.
#[derive(Clone)]
pub struct Opener(pub(super) Arc<Records>);

impl Opener {
    /// Opens what an entry tells of.
    ///
    /// # Errors
    /// `EIO` when its record is damaged, or its content lost, which is outside of the container; `ENOENT` when that has come to its place.
    pub fn open(&self, entry: &IndexEntry) -> Result<FileReader> {
        let mut reader = self.open_record(entry)?;
        if let Some(identity) = Identity::told_outside(&reader.node) {
            let content = OutsideContent::open(&**self.0.fs(), &identity, &mut reader.node)?;
            reader.outside = Some(content);
        }
        Ok(reader)
    }

    /// The same, of what records have.
    pub(super) fn open_record(&self, entry: &IndexEntry) -> Result<FileReader> {
        let (head, node, bytes) = self.0.read_entry(entry, AHEAD_SIZE)?;
        let damaged = |why| Err(not_there(entry.lane, entry.address, why));
        let extents = match &node.content {
            Content::Here if node.kind == FileKind::File && u64::from(head.data_size) != node.size => {
                return damaged("its size is not that of its content");
            }
            Content::Here => entry.own_extent(node.size).into_iter().collect(),
            Content::Extents(extents) => extents.clone(),
        };
        let piece = Some(Piece::new(head, bytes));
        Ok(FileReader { piece, ..FileReader::new(self.0.clone(), node, extents) })
    }
}

impl FileReader {
    pub(super) fn new(records: Arc<Records>, node: Node, extents: Vec<Extent>) -> Self {
        Self { records, node, extents, piece: None, outside: None }
    }

    /// What is told of it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Reads at `offset` until `buffer` is full or the file ends; the number of bytes read.
    ///
    /// # Errors
    /// `EIO` when these bytes are damaged, `EISDIR` or `EINVAL` when it is no regular file.
    pub fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.node.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.fill(&mut buffer[..count], offset)?;
        Ok(count)
    }

    /// Reads at `offset` until `buffer` is full; zeros where nothing is, also behind the end.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn fill(&mut self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut filled = 0;
        self.visit(offset..offset + buffer.len() as u64, &mut |at, bytes| {
            let start = (at - offset) as usize;
            buffer[filled..start].fill(0);
            filled = start + bytes.len();
            buffer[start..filled].copy_from_slice(bytes);
            Ok(())
        })?;
        buffer[filled..].fill(0);
        Ok(())
    }

    /// Shows what is in a range of the file, in order; between what is shown are zeros.
    ///
    /// # Errors
    /// As [`Self::read_at`], and what `show` says.
    pub fn visit(&mut self, range: Range<u64>, show: Show<'_>) -> Result<()> {
        match self.node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if let Some(content) = &self.outside {
            return content.visit(range, show);
        }
        let Self { records, extents, piece, .. } = self;
        let first = extents.partition_point(|extent| extent.end() <= range.start);
        for extent in extents[first..].iter().take_while(|extent| extent.start < range.end) {
            let (start, end) = (range.start.max(extent.start), range.end.min(extent.end()));
            let skip = u64::from(extent.skip);
            let data = skip + (start - extent.start)..skip + (end - extent.start);
            let mut show = |at: u64, bytes: &[u8]| show(extent.start + (at - skip), bytes);
            match piece.take().filter(|piece| piece.is_at(extent)) {
                Some(known) => piece.insert(known),
                None => piece.insert(Piece::read(records, extent, data.start)?),
            }
            .visit(records, data, &mut show)?;
        }
        Ok(())
    }

    /// What is damaged of it: of each piece, the first thing.
    ///
    /// # Errors
    /// What the file system says, beside damage.
    pub(super) fn damage(&mut self) -> Result<Vec<Fault>> {
        let mut damage = Vec::new();
        if self.node.kind != FileKind::File {
            return Ok(damage);
        }
        for extent in self.extents.clone() {
            match self.visit(extent.start..extent.end(), &mut |_, _| Ok(())) {
                Ok(()) => {}
                Err(fault) if fault.errno == Errno::EIO => damage.push(fault),
                Err(fault) => return Err(fault),
            }
        }
        Ok(damage)
    }
}

/// A record, and some chunks of its data.
struct Piece {
    head: Head,
    /// Bytes of the record.
    bytes: Vec<u8>,
    /// Where in the record they begin.
    start: usize,
    /// Chunks that are in them.
    chunks: Range<usize>,
    /// The chunk that was found to be right last.
    proven: Option<usize>,
    /// Its bytes, where it is kept in a smaller form.
    unpacked: Vec<u8>,
}

impl Piece {
    /// Of the first bytes of a record, its head among them.
    fn new(head: Head, bytes: Vec<u8>) -> Self {
        let whole = (0..head.chunks.len()).take_while(|chunk| head.kept_range(*chunk).end <= bytes.len());
        let chunks = 0..whole.count();
        Self { head, bytes, start: 0, chunks, proven: None, unpacked: Vec::new() }
    }

    /// The record that an extent is of, of which data from `first` on is wanted.
    fn read(records: &Records, extent: &Extent, first: u64) -> Result<Self> {
        let data = extent.skip as usize + extent.length as usize;
        let ahead = if first < AHEAD_SIZE as u64 { data.min(AHEAD_SIZE) } else { 0 };
        let size = record::head_size(0, data) + ahead;
        let (head, bytes) = records.read(extent.lane, extent.address, size)?;
        Ok(Self::new(head, bytes))
    }

    fn is_at(&self, extent: &Extent) -> bool {
        (self.head.place.lane, self.head.place.address) == (extent.lane, extent.address)
    }

    /// Shows a range of the record's data, and where in that the bytes are.
    fn visit(&mut self, records: &Records, data: Range<u64>, show: Show<'_>) -> Result<()> {
        if data.end > u64::from(self.head.data_size) {
            let place = self.head.place;
            return Err(not_there(place.lane, place.address, "it is shorter than it should be"));
        }
        let mut at = data.start;
        while at < data.end {
            let chunk = (at / u64::from(CHUNK_SIZE)) as usize;
            if !self.chunks.contains(&chunk) {
                self.read_chunks(records, chunk)?;
            }
            let content = self.content(chunk)?;
            let start = chunk as u64 * u64::from(CHUNK_SIZE);
            let end = data.end.min(start + content.len() as u64);
            show(at, &content[(at - start) as usize..(end - start) as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Reads some chunks from this one on.
    fn read_chunks(&mut self, records: &Records, first: usize) -> Result<()> {
        let (head, place) = (&self.head, self.head.place);
        let chunks = first..(first + CHUNKS_AHEAD).min(head.chunks.len());
        let kept = head.kept_range(chunks.start).start..head.kept_range(chunks.end - 1).end;
        (self.chunks, self.proven) = (0..0, None);
        self.bytes.resize(kept.len(), 0);
        let count = records.read_at(place.lane, place.address + kept.start as u64, &mut self.bytes)?;
        if count < kept.len() {
            return Err(not_there(place.lane, place.address, "the subfile ends in its content"));
        }
        (self.chunks, self.start) = (chunks, kept.start);
        Ok(())
    }

    /// A chunk that is in memory, if it is right.
    fn content(&mut self, chunk: usize) -> Result<&[u8]> {
        let kept = self.head.kept_range(chunk);
        let kept = &self.bytes[kept.start - self.start..kept.end - self.start];
        let size = self.head.chunk_range(chunk).len();
        if self.proven != Some(chunk) {
            self.proven = None;
            record::check_chunk(&self.head, chunk, kept)?;
            if kept.len() < size {
                unpack(kept, size, &mut self.unpacked)?;
            }
            self.proven = Some(chunk);
        }
        Ok(if kept.len() < size { &self.unpacked } else { kept })
    }
}
