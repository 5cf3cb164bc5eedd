//! Reads a file of a container.

mod sink;

use super::records::{PooledFile, Reader, Records, missing, not_there};
use crate::format::codec::unpack;
use crate::format::entry::{Content, Extent, Node};
use crate::format::external::{ExternalContent, Identity, Show};
use crate::format::geometry::LaneId;
use crate::format::record::{self, CHUNK_SIZE, Head};
use crate::index::IndexEntry;
use sink::{Filled, Shown, Sink};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result};

/// Chunks per read if less than one chunk is wanted.
const CHUNKS_AHEAD: usize = 4;
/// Chunks per read into the caller's buffer: all that a piece has.
const CHUNKS_MAX: usize = 16;
/// Data of at most this size, in bytes, is read together with the head of its record. Larger data is read directly to the caller's buffer.
const WITH_HEAD: usize = CHUNK_SIZE as usize;

/// An open file of a container. It caches a few chunks of one record.
pub struct FileReader {
    source: Source,
    node: Node,
    extents: Vec<Extent>,
    piece: Option<Piece>,
    /// External content.
    external: Option<ExternalContent>,
}

/// Opens files of a container, independently of later changes of the [`Container`](super::Container).
#[derive(Clone)]
pub struct Opener(pub(crate) Arc<Records>);

impl Opener {
    /// Opens the file of an entry.
    ///
    /// # Errors
    /// `EIO` if its record is damaged or its external content is lost; `ENOENT` if its external content was promoted.
    pub fn open(&self, entry: &IndexEntry) -> Result<FileReader> {
        if is_long(entry) {
            self.0.prefetch(entry);
        }
        self.open_unread(entry)
    }

    /// As [`Self::open`], for callers that read attributes and no content.
    pub(crate) fn open_unread(&self, entry: &IndexEntry) -> Result<FileReader> {
        let mut reader = self.open_record(entry)?;
        if let Some(identity) = Identity::decode_external(&reader.node) {
            let content = ExternalContent::open(&**self.0.fs(), &identity, &mut reader.node)?;
            reader.external = Some(content);
        }
        Ok(reader)
    }

    /// As [`Self::open_unread`], without external content.
    pub(crate) fn open_record(&self, entry: &IndexEntry) -> Result<FileReader> {
        let (head, node, bytes) = self.0.read_entry(entry, if is_long(entry) { 0 } else { WITH_HEAD })?;
        let damaged = |why| Err(not_there(entry.lane, entry.address, why));
        let extents = match &node.content {
            Content::Here if node.kind == FileKind::File && u64::from(head.data_size) != node.size => {
                return damaged("its size differs from that of its content");
            }
            Content::Here => entry.own_extent(node.size).into_iter().collect(),
            Content::Extents(extents) => extents.clone(),
        };
        let piece = Some(Piece::new(head, bytes));
        Ok(FileReader { piece, ..FileReader::new(self.0.clone(), node, extents) })
    }
}

/// Returns true if a file is too long to be read with its head.
fn is_long(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.size > WITH_HEAD as u64)
}

impl FileReader {
    pub(crate) fn new(records: Arc<Records>, node: Node, extents: Vec<Extent>) -> Self {
        let is_long = extents.last().is_some_and(|last| last.end() > WITH_HEAD as u64);
        let source = Source { records, is_long, reader: Reader::default(), pooled: None };
        Self { source, node, extents, piece: None, external: None }
    }

    /// Attributes of the file.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Reads at `offset` until `buffer` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// `EIO` if these bytes are damaged, `EISDIR` or `EINVAL` if this is not a regular file.
    pub fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.node.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.fill(&mut buffer[..count], offset)?;
        Ok(count)
    }

    /// Reads at `offset` until `buffer` is full; zeros in holes and beyond the end.
    pub fn fill(&mut self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let range = offset..offset + buffer.len() as u64;
        let mut filled = Filled { buffer, offset, done: 0 };
        self.give(range, &mut filled)?;
        filled.buffer[filled.done..].fill(0);
        Ok(())
    }

    /// Passes the data in a range of the file to `show`, by ascending offset; skipped bytes are zeros.
    pub fn visit(&mut self, range: Range<u64>, show: Show<'_>) -> Result<()> {
        self.give(range, &mut Shown(show))
    }

    fn give(&mut self, range: Range<u64>, sink: &mut dyn Sink) -> Result<()> {
        match self.node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if let Some(content) = &self.external {
            return content.visit(range, &mut |at, bytes| sink.take(at, bytes));
        }
        let given = self.give_extents(range, sink);
        self.source.pooled = None;
        given
    }

    fn give_extents(&mut self, range: Range<u64>, sink: &mut dyn Sink) -> Result<()> {
        let Self { source, extents, piece, .. } = self;
        let first = extents.partition_point(|extent| extent.end() <= range.start);
        for extent in extents[first..].iter().take_while(|extent| extent.start < range.end) {
            let (start, end) = (range.start.max(extent.start), range.end.min(extent.end()));
            let skip = u64::from(extent.skip);
            let data = skip + (start - extent.start)..skip + (end - extent.start);
            match piece.take().filter(|piece| piece.is_at(extent)) {
                Some(known) => piece.insert(known),
                None => piece.insert(Piece::read(source, extent)?),
            }
            .give(source, data, start, sink)?;
        }
        Ok(())
    }

    /// The next range at or after `offset` that is not a hole.
    pub fn data(&self, offset: u64) -> Option<Range<u64>> {
        if self.external.is_some() {
            return (offset < self.node.size).then_some(offset..self.node.size);
        }
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let (next, rest) = self.extents[first..].split_first()?;
        let pairs = self.extents[first..].iter().zip(rest);
        let joined = pairs.take_while(|(one, next)| one.end() == next.start).count();
        Some(next.start.max(offset)..rest[..joined].last().unwrap_or(next).end())
    }

    /// The damage: the first one of each extent.
    pub(crate) fn damage(&mut self) -> Result<Vec<Fault>> {
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

/// Access to the records of a file.
struct Source {
    records: Arc<Records>,
    /// The file takes more than one read.
    is_long: bool,
    reader: Reader,
    /// Borrowed for one call only, so that other readers can use it between calls.
    pooled: Option<PooledFile>,
}

impl Source {
    /// An open file descriptor of a subfile.
    fn pooled(&mut self, subfile: u32) -> Result<&mut PooledFile> {
        let known = self.pooled.take().filter(|pooled| pooled.number() == subfile);
        let pooled = match known {
            Some(pooled) => pooled,
            None => self.records.borrow(subfile, &self.reader)?,
        };
        Ok(self.pooled.insert(pooled))
    }

    fn read(&mut self, extent: &Extent, size: usize) -> Result<(Head, Vec<u8>)> {
        let Extent { lane, address, .. } = *extent;
        if !self.is_long {
            return self.records.read(lane, address, size);
        }
        let pooled = self.pooled(lane.subfile).map_err(|fault| missing(fault, lane, address))?;
        let file = pooled.file().clone();
        self.records.read_by(&*file, lane, address, size)
    }

    /// Reads at an address of a lane, within a block, until the buffer is full or the subfile ends.
    fn read_at(&mut self, lane: LaneId, address: u64, buffer: &mut [u8], is_exact: bool) -> Result<usize> {
        let offset = self.records.superblock().geometry.offset(lane.lane, address);
        let pooled = self.pooled(lane.subfile)?;
        if is_exact { pooled.read_wanted(buffer, offset) } else { pooled.file().read_at(buffer, offset) }
    }
}

/// A record, and some chunks of its data.
struct Piece {
    head: Head,
    /// A part of the record.
    bytes: Vec<u8>,
    /// Offset of `bytes` in the record.
    start: usize,
    /// Chunks in `bytes`.
    chunks: Range<usize>,
    /// The chunk whose checksum was verified last.
    proven: Option<usize>,
    /// Its data, if it is compressed.
    unpacked: Vec<u8>,
}

impl Piece {
    /// `bytes` begin with the record's head.
    fn new(head: Head, bytes: Vec<u8>) -> Self {
        let whole = (0..head.chunks.len()).take_while(|chunk| head.stored_range(*chunk).end <= bytes.len());
        let chunks = 0..whole.count();
        Self { head, bytes, start: 0, chunks, proven: None, unpacked: Vec::new() }
    }

    /// Reads the head of an extent's record, with all data if that is small.
    fn read(source: &mut Source, extent: &Extent) -> Result<Self> {
        let data = extent.skip as usize + extent.length as usize;
        let ahead = if data <= WITH_HEAD { data } else { 0 };
        let size = record::head_size(0, data) + ahead;
        let (head, bytes) = source.read(extent, size)?;
        Ok(Self::new(head, bytes))
    }

    fn is_at(&self, extent: &Extent) -> bool {
        (self.head.position.lane, self.head.position.address) == (extent.lane, extent.address)
    }

    /// Passes a range of the record's data to `sink`; `offset` is that of the range in the file.
    fn give(
        &mut self,
        source: &mut Source,
        data: Range<u64>,
        offset: u64,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        if data.end > u64::from(self.head.data_size) {
            let position = self.head.position;
            return Err(not_there(
                position.lane,
                position.address,
                "its data is shorter than the entry says",
            ));
        }
        let mut at = data.start;
        while at < data.end {
            let chunk = (at / u64::from(CHUNK_SIZE)) as usize;
            let whole = self.head.chunk_range(chunk);
            let to = offset + (at - data.start);
            let run = self.plain_run(chunk, &(at..data.end));
            let buffer = match run.is_empty() {
                true => None,
                false => sink.buffer(to, self.stored_range(&run).len()),
            };
            if let Some(buffer) = buffer {
                self.read_plain(source, run, buffer)?;
                at += buffer.len() as u64;
                continue;
            }
            let (start, end) = (u64::from(whole.start), data.end.min(whole.end.into()));
            // If whole chunks are wanted, the kernel reads the next one ahead while this one is used; a larger read would wait for all.
            let is_wanted_whole = at == start && end == u64::from(whole.end);
            let content = self.content(source, chunk, if is_wanted_whole { 1 } else { CHUNKS_AHEAD })?;
            sink.take(to, &content[(at - start) as usize..(end - start) as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Uncompressed chunks from `first` on that are wanted whole and are not cached, as many as one read takes.
    fn plain_run(&self, first: usize, wanted: &Range<u64>) -> Range<usize> {
        let is_one = |chunk: &usize| {
            let whole = self.head.chunk_range(*chunk);
            u64::from(whole.start) >= wanted.start
                && u64::from(whole.end) <= wanted.end
                && self.head.stored_range(*chunk).len() == whole.len()
                && !self.chunks.contains(chunk)
        };
        let count = (first..self.head.chunks.len()).take(CHUNKS_MAX).take_while(is_one).count();
        first..first + count
    }

    /// Reads uncompressed chunks into the caller's buffer, and verifies them there.
    fn read_plain(&self, source: &mut Source, chunks: Range<usize>, buffer: &mut [u8]) -> Result<()> {
        self.read_kept(source, &chunks, buffer, true)?;
        let start = self.stored_range(&chunks).start;
        for chunk in chunks {
            let stored = self.head.stored_range(chunk);
            record::check_chunk(&self.head, chunk, &buffer[stored.start - start..stored.end - start])?;
        }
        Ok(())
    }

    /// Range of the stored bytes of chunks in the record.
    fn stored_range(&self, chunks: &Range<usize>) -> Range<usize> {
        self.head.stored_range(chunks.start).start..self.head.stored_range(chunks.end - 1).end
    }

    /// Reads the stored bytes of chunks. The system reads ahead, unless `is_exact`.
    fn read_kept(
        &self,
        source: &mut Source,
        chunks: &Range<usize>,
        into: &mut [u8],
        is_exact: bool,
    ) -> Result<()> {
        let (start, position) = (self.stored_range(chunks).start, self.head.position);
        if source.read_at(position.lane, position.address + start as u64, into, is_exact)? < into.len() {
            return Err(not_there(position.lane, position.address, "the subfile ends within its data"));
        }
        Ok(())
    }

    /// The verified data of a chunk. If it is not cached, up to `ahead` chunks from it on are read and cached.
    fn content(&mut self, source: &mut Source, chunk: usize, ahead: usize) -> Result<&[u8]> {
        if !self.chunks.contains(&chunk) {
            let chunks = chunk..(chunk + ahead).min(self.head.chunks.len());
            let (stored, mut bytes) = (self.stored_range(&chunks), std::mem::take(&mut self.bytes));
            (self.chunks, self.proven) = (0..0, None);
            bytes.resize(stored.len(), 0);
            self.read_kept(source, &chunks, &mut bytes, false)?;
            (self.bytes, self.chunks, self.start) = (bytes, chunks, stored.start);
        }
        let stored = self.head.stored_range(chunk);
        let stored = &self.bytes[stored.start - self.start..stored.end - self.start];
        let size = self.head.chunk_range(chunk).len();
        if self.proven != Some(chunk) {
            self.proven = None;
            record::check_chunk(&self.head, chunk, stored)?;
            if stored.len() < size {
                unpack(stored, size, &mut self.unpacked)?;
            }
            self.proven = Some(chunk);
        }
        Ok(if stored.len() < size { &self.unpacked } else { stored })
    }
}
