//! Reading a file of a container.

mod taker;

use super::records::{Lent, Reader, Records, missing, not_there};
use crate::format::codec::unpack;
use crate::format::entry::{Content, Extent, Node};
use crate::format::external::{Identity, OutsideContent, Show};
use crate::format::geometry::LaneId;
use crate::format::record;
use crate::format::record::{CHUNK_SIZE, Head};
use crate::index::IndexEntry;
use std::ops::Range;
use std::sync::Arc;
use taker::{Filled, Shown, Taker};
use tameike_core::{Errno, Fault, FileKind, Result};

/// Chunks that are read at once where less than one is asked for.
const CHUNKS_AHEAD: usize = 4;
/// And where they are read straight to where they are wanted: all of a piece.
const CHUNKS_MAX: usize = 16;
/// Bytes of data that are read with the head of their record, where there are no more: more is read straight to where it is wanted.
const WITH_HEAD: usize = CHUNK_SIZE as usize;

/// A file of a container that is open. It keeps a few chunks of one record in memory.
pub struct FileReader {
    source: Source,
    node: Node,
    extents: Vec<Extent>,
    piece: Option<Piece>,
    /// What no record has.
    outside: Option<OutsideContent>,
}

/// Opens files of a container, whatever is done to what is known of it meanwhile.
#[derive(Clone)]
pub struct Opener(pub(crate) Arc<Records>);

impl Opener {
    /// Opens what an entry tells of.
    ///
    /// # Errors
    /// `EIO` when its record is damaged, or its content lost, which is outside of the container; `ENOENT` when that has come to its place.
    pub fn open(&self, entry: &IndexEntry) -> Result<FileReader> {
        if is_long(entry) {
            self.0.prefetch(entry);
        }
        self.open_unread(entry)
    }

    /// The same for who wants what is told of it, and nothing of its content.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_unread(&self, entry: &IndexEntry) -> Result<FileReader> {
        let mut reader = self.open_record(entry)?;
        if let Some(identity) = Identity::told_outside(&reader.node) {
            let content = OutsideContent::open(&**self.0.fs(), &identity, &mut reader.node)?;
            reader.outside = Some(content);
        }
        Ok(reader)
    }

    /// The same, of what records have.
    pub(crate) fn open_record(&self, entry: &IndexEntry) -> Result<FileReader> {
        let (head, node, bytes) = self.0.read_entry(entry, if is_long(entry) { 0 } else { WITH_HEAD })?;
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

/// Whether a file is too long to be read with its head.
fn is_long(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.size > WITH_HEAD as u64)
}

impl FileReader {
    pub(crate) fn new(records: Arc<Records>, node: Node, extents: Vec<Extent>) -> Self {
        let is_long = extents.last().is_some_and(|last| last.end() > WITH_HEAD as u64);
        let source = Source { records, is_long, reader: Reader::default(), lent: None };
        Self { source, node, extents, piece: None, outside: None }
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
        let range = offset..offset + buffer.len() as u64;
        let mut filled = Filled { buffer, offset, done: 0 };
        self.give(range, &mut filled)?;
        filled.buffer[filled.done..].fill(0);
        Ok(())
    }

    /// Shows what is in a range of the file, in order; between what is shown are zeros.
    ///
    /// # Errors
    /// As [`Self::read_at`], and what `show` says.
    pub fn visit(&mut self, range: Range<u64>, show: Show<'_>) -> Result<()> {
        self.give(range, &mut Shown(show))
    }

    fn give(&mut self, range: Range<u64>, taker: &mut dyn Taker) -> Result<()> {
        match self.node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if let Some(content) = &self.outside {
            return content.visit(range, &mut |at, bytes| taker.take(at, bytes));
        }
        let given = self.give_extents(range, taker);
        self.source.lent = None;
        given
    }

    fn give_extents(&mut self, range: Range<u64>, taker: &mut dyn Taker) -> Result<()> {
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
            .give(source, data, start, taker)?;
        }
        Ok(())
    }

    /// The next bytes at or behind `offset` that are no hole.
    pub fn data(&self, offset: u64) -> Option<Range<u64>> {
        if self.outside.is_some() {
            return (offset < self.node.size).then_some(offset..self.node.size);
        }
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let (next, rest) = self.extents[first..].split_first()?;
        let pairs = self.extents[first..].iter().zip(rest);
        let joined = pairs.take_while(|(one, next)| one.end() == next.start).count();
        Some(next.start.max(offset)..rest[..joined].last().unwrap_or(next).end())
    }

    /// What is damaged of it: of each piece, the first thing.
    ///
    /// # Errors
    /// What the file system says, beside damage.
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

/// Where the records of a file are read.
struct Source {
    records: Arc<Records>,
    /// The file is more than one read.
    is_long: bool,
    reader: Reader,
    /// During a call: while nobody reads, others may.
    lent: Option<Lent>,
}

impl Source {
    /// An open file of a subfile.
    fn lent(&mut self, subfile: u32) -> Result<&mut Lent> {
        let known = self.lent.take().filter(|lent| lent.number() == subfile);
        let lent = match known {
            Some(lent) => lent,
            None => self.records.lend(subfile, &self.reader)?,
        };
        Ok(self.lent.insert(lent))
    }

    fn read(&mut self, extent: &Extent, size: usize) -> Result<(Head, Vec<u8>)> {
        let Extent { lane, address, .. } = *extent;
        if !self.is_long {
            return self.records.read(lane, address, size);
        }
        let lent = self.lent(lane.subfile).map_err(|fault| missing(fault, lane, address))?;
        let file = lent.file().clone();
        self.records.read_by(&*file, lane, address, size)
    }

    /// Reads at an address of a lane, within a block, as far as the subfile goes.
    fn read_at(&mut self, lane: LaneId, address: u64, buffer: &mut [u8], is_exact: bool) -> Result<usize> {
        let offset = self.records.superblock().geometry.offset(lane.lane, address);
        let lent = self.lent(lane.subfile)?;
        if is_exact { lent.read_wanted(buffer, offset) } else { lent.file().read_at(buffer, offset) }
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

    /// The record that an extent is of; all of one whose data is read at once.
    fn read(source: &mut Source, extent: &Extent) -> Result<Self> {
        let data = extent.skip as usize + extent.length as usize;
        let ahead = if data <= WITH_HEAD { data } else { 0 };
        let size = record::head_size(0, data) + ahead;
        let (head, bytes) = source.read(extent, size)?;
        Ok(Self::new(head, bytes))
    }

    fn is_at(&self, extent: &Extent) -> bool {
        (self.head.place.lane, self.head.place.address) == (extent.lane, extent.address)
    }

    /// Gives a range of the record's data, which is in the file from `place` on.
    fn give(
        &mut self,
        source: &mut Source,
        data: Range<u64>,
        place: u64,
        taker: &mut dyn Taker,
    ) -> Result<()> {
        if data.end > u64::from(self.head.data_size) {
            let place = self.head.place;
            return Err(not_there(place.lane, place.address, "it is shorter than it should be"));
        }
        let mut at = data.start;
        while at < data.end {
            let chunk = (at / u64::from(CHUNK_SIZE)) as usize;
            let whole = self.head.chunk_range(chunk);
            let to = place + (at - data.start);
            let run = self.plain_run(chunk, &(at..data.end));
            let room = match run.is_empty() {
                true => None,
                false => taker.room(to, self.kept_range(&run).len()),
            };
            if let Some(room) = room {
                self.read_plain(source, run, room)?;
                at += room.len() as u64;
                continue;
            }
            let (start, end) = (u64::from(whole.start), data.end.min(whole.end.into()));
            // Of what is wanted whole the kernel reads the next chunk while this one is used; of a larger read it would wait for all.
            let is_wanted_whole = at == start && end == u64::from(whole.end);
            let content = self.content(source, chunk, if is_wanted_whole { 1 } else { CHUNKS_AHEAD })?;
            taker.take(to, &content[(at - start) as usize..(end - start) as usize])?;
            at = end;
        }
        Ok(())
    }

    /// Chunks from `first` on that are wanted whole, kept as they are, and not in memory: as many as are read at once.
    fn plain_run(&self, first: usize, wanted: &Range<u64>) -> Range<usize> {
        let is_one = |chunk: &usize| {
            let whole = self.head.chunk_range(*chunk);
            u64::from(whole.start) >= wanted.start
                && u64::from(whole.end) <= wanted.end
                && self.head.kept_range(*chunk).len() == whole.len()
                && !self.chunks.contains(chunk)
        };
        let count = (first..self.head.chunks.len()).take(CHUNKS_MAX).take_while(is_one).count();
        first..first + count
    }

    /// Reads such chunks to where they are wanted, and proves them there.
    fn read_plain(&self, source: &mut Source, chunks: Range<usize>, room: &mut [u8]) -> Result<()> {
        self.read_kept(source, &chunks, room, true)?;
        let start = self.kept_range(&chunks).start;
        for chunk in chunks {
            let kept = self.head.kept_range(chunk);
            record::check_chunk(&self.head, chunk, &room[kept.start - start..kept.end - start])?;
        }
        Ok(())
    }

    /// Where in the record what is kept of some chunks lies.
    fn kept_range(&self, chunks: &Range<usize>) -> Range<usize> {
        self.head.kept_range(chunks.start).start..self.head.kept_range(chunks.end - 1).end
    }

    /// Reads what is kept of some chunks; the system reads ahead behind them, unless the read is exact.
    fn read_kept(
        &self,
        source: &mut Source,
        chunks: &Range<usize>,
        into: &mut [u8],
        is_exact: bool,
    ) -> Result<()> {
        let (start, place) = (self.kept_range(chunks).start, self.head.place);
        if source.read_at(place.lane, place.address + start as u64, into, is_exact)? < into.len() {
            return Err(not_there(place.lane, place.address, "the subfile ends in its content"));
        }
        Ok(())
    }

    /// A chunk, if it is right. It stays in memory, with up to `ahead` from it on where it was not there.
    fn content(&mut self, source: &mut Source, chunk: usize, ahead: usize) -> Result<&[u8]> {
        if !self.chunks.contains(&chunk) {
            let chunks = chunk..(chunk + ahead).min(self.head.chunks.len());
            let (kept, mut bytes) = (self.kept_range(&chunks), std::mem::take(&mut self.bytes));
            (self.chunks, self.proven) = (0..0, None);
            bytes.resize(kept.len(), 0);
            self.read_kept(source, &chunks, &mut bytes, false)?;
            (self.bytes, self.chunks, self.start) = (bytes, chunks, kept.start);
        }
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
