//! Reading a file of a container.

use super::codec::unpack;
use super::entry::{Content, Extent, Node};
use super::record::{self, CHUNK_SIZE, FIXED_SIZE, Head, Place};
use super::records::{Records, not_there};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result};

/// Chunks that are read at once, also when less is asked for.
const CHUNKS_AHEAD: usize = 4;

/// A file of a container that is open. It keeps a record of its own, or a few chunks, in memory.
pub struct FileReader {
    records: Arc<Records>,
    node: Node,
    /// The record of the entry, as far as it was read, where the content may be in it.
    own: Option<(Head, Vec<u8>)>,
    /// The head of the record of data that was read last.
    piece: Option<Head>,
    /// Chunks of it that are in `bytes`.
    chunks: Range<usize>,
    bytes: Vec<u8>,
    proven: Proven,
}

/// The chunk, of the piece or of the own record, that was found to be right.
#[derive(Default)]
struct Proven {
    number: Option<usize>,
    /// Its bytes, where it is kept in a smaller form.
    unpacked: Vec<u8>,
}

impl FileReader {
    pub(super) fn new(records: Arc<Records>, node: Node, own: Option<(Head, Vec<u8>)>) -> Self {
        Self { records, node, own, piece: None, chunks: 0..0, bytes: Vec::new(), proven: Proven::default() }
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
        match self.node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let count = self.node.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..count];
        match &self.node.content {
            Content::Here => self.read_own(buffer, offset)?,
            Content::Extents(extents) => {
                let wanted = offset..offset + count as u64;
                let first =
                    extents.partition_point(|extent| extent.start + u64::from(extent.length) <= offset);
                let some: Vec<_> =
                    extents[first..].iter().take_while(|extent| extent.start < wanted.end).copied().collect();
                buffer.fill(0);
                for extent in some {
                    self.read_extent(&extent, &wanted, buffer)?;
                }
            }
        }
        Ok(count)
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
        let pieces: Vec<Range<u64>> = match &self.node.content {
            Content::Here => std::iter::once(0..self.node.size).collect(),
            Content::Extents(extents) => {
                extents.iter().map(|extent| extent.start..extent.start + u64::from(extent.length)).collect()
            }
        };
        let mut buffer = vec![0; CHUNK_SIZE as usize];
        for Range { mut start, end } in pieces {
            while start < end {
                let size = (end - start).min(buffer.len() as u64);
                match self.read_at(&mut buffer[..size as usize], start) {
                    Ok(_) => {}
                    Err(fault) if fault.errno == Errno::EIO => {
                        damage.push(fault);
                        break;
                    }
                    Err(fault) => return Err(fault),
                }
                start += size;
            }
        }
        Ok(damage)
    }

    /// From the record of the entry.
    fn read_own(&mut self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let Some((head, bytes)) = &mut self.own else { return Err(Errno::EIO.into()) };
        let damaged = |place: Place, why| Err(not_there(place.lane, place.address, why));
        if u64::from(head.data_size) != self.node.size {
            return damaged(head.place, "its size is not that of its content");
        }
        let whole = (head.size + head.kept_size) as usize;
        if bytes.len() < whole {
            (*head, *bytes) = self.records.read(head.place.lane, head.place.address, whole)?;
            if bytes.len() < whole {
                return damaged(head.place, "the subfile ends in its content");
            }
        }
        copy_chunks(head, bytes, 0, offset..offset + buffer.len() as u64, buffer, &mut self.proven)
    }

    /// The bytes of an extent that are within `wanted` of the file, into their place in `buffer`.
    fn read_extent(&mut self, extent: &Extent, wanted: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let start = extent.start.max(wanted.start);
        let end = (extent.start + u64::from(extent.length)).min(wanted.end);
        let in_data = |at: u64| u64::from(extent.skip) + (at - extent.start);
        let data = in_data(start)..in_data(end);
        let is_at_hand = self
            .piece
            .as_ref()
            .is_some_and(|head| head.place.lane == extent.lane && head.place.address == extent.address);
        if !is_at_hand {
            let (head, _) = self.records.read(extent.lane, extent.address, first_read(extent))?;
            (self.piece, self.chunks, self.proven.number) = (Some(head), 0..0, None);
        }
        let Some(head) = self.piece.clone() else { return Err(Errno::EIO.into()) };
        if data.end > u64::from(head.data_size) {
            return Err(not_there(extent.lane, extent.address, "it is shorter than it should be"));
        }
        let chunks =
            (data.start / u64::from(CHUNK_SIZE)) as usize..data.end.div_ceil(CHUNK_SIZE.into()) as usize;
        if chunks.start < self.chunks.start || chunks.end > self.chunks.end {
            let ahead = chunks.start..chunks.end.max(chunks.start + CHUNKS_AHEAD).min(head.chunks.len());
            self.read_chunks(&head, ahead)?;
        }
        let part = &mut buffer[(start - wanted.start) as usize..(end - wanted.start) as usize];
        let bytes_at = head.kept_range(self.chunks.start).start;
        copy_chunks(&head, &self.bytes, bytes_at, data, part, &mut self.proven)
    }

    fn read_chunks(&mut self, head: &Head, chunks: Range<usize>) -> Result<()> {
        let kept = head.kept_range(chunks.start).start..head.kept_range(chunks.end - 1).end;
        self.bytes.resize(kept.len(), 0);
        (self.chunks, self.proven.number) = (0..0, None);
        let address = head.place.address + kept.start as u64;
        let count = self.records.read_at(head.place.lane, address, &mut self.bytes)?;
        if count < kept.len() {
            return Err(not_there(head.place.lane, head.place.address, "the subfile ends in its content"));
        }
        self.chunks = chunks;
        Ok(())
    }
}

/// What is read of a record of data for its head: its chunks are listed in there.
fn first_read(extent: &Extent) -> usize {
    let data = (extent.skip as usize).saturating_add(extent.length as usize);
    record::head_size(0, data).max(FIXED_SIZE)
}

/// Copies bytes of a record's data, from bytes of the record of which the first is at `bytes_at` of it; those of a chunk that was proven
/// last are right.
fn copy_chunks(
    head: &Head,
    bytes: &[u8],
    bytes_at: usize,
    data: Range<u64>,
    into: &mut [u8],
    proven: &mut Proven,
) -> Result<()> {
    let chunk_size = u64::from(CHUNK_SIZE);
    let mut at = data.start;
    while at < data.end {
        let chunk = (at / chunk_size) as usize;
        let kept = head.kept_range(chunk);
        let kept = &bytes[kept.start - bytes_at..kept.end - bytes_at];
        let size = head.chunk_range(chunk).len();
        if proven.number != Some(chunk) {
            proven.number = None;
            record::check_chunk(head, chunk, kept)?;
            if kept.len() < size {
                unpack(kept, size, &mut proven.unpacked)?;
            }
            proven.number = Some(chunk);
        }
        let content = if kept.len() < size { &proven.unpacked } else { kept };
        let (start, end) = (at % chunk_size, (data.end - chunk as u64 * chunk_size).min(chunk_size));
        let to = (at - data.start) as usize;
        into[to..to + (end - start) as usize].copy_from_slice(&content[start as usize..end as usize]);
        at += end - start;
    }
    Ok(())
}
