//! A file that is open for writing: its buffer in memory, and its extents in lanes.

use super::extents;
use crate::{Container, Content, Extent, FileReader, LaneWriter, Node};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{FileKind, Result};
use tameike_io::os::process::wall;

/// Maximum bytes that a file buffers before they go to the lane.
const BUFFER_SIZE_MAX: usize = 1 << 20;
/// Writes of this size, in bytes, or more bypass the buffer, unless they may be the whole file.
const DIRECT_SIZE_MIN: usize = 256 << 10;

/// A file that is open for writing.
pub struct Draft {
    /// Its path; `None` after an unlink.
    pub path: Option<Vec<u8>>,
    /// Current attributes; size and content are in the other fields.
    pub node: Node,
    /// Size in bytes.
    pub size: u64,
    /// Content in lanes.
    extents: Vec<Extent>,
    /// Reads `extents`; dropped when they change.
    reader: Option<Arc<Mutex<FileReader>>>,
    /// Content in memory only; it covers the extents from `buffer_at` on.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// True if no entry describes the current state.
    pub is_changed: bool,
}

/// A read of the file's state at one moment. It needs neither the file nor the writer, so that a slow read blocks no other call.
pub struct Reading {
    offset: u64,
    count: usize,
    /// Reads content in lanes, if not all is in memory.
    reader: Option<Arc<Mutex<FileReader>>>,
    /// Offset of `over` in the read: content from memory, which covers that from lanes.
    over_at: usize,
    over: Vec<u8>,
}

impl Reading {
    /// Number of bytes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Reads the bytes into a buffer of their size. Fails with `EIO` if content in lanes is damaged.
    pub fn fill(self, into: &mut [u8]) -> Result<()> {
        if let Some(reader) = self.reader {
            reader.lock().fill(into, self.offset)?;
        }
        into[self.over_at..self.over_at + self.over.len()].copy_from_slice(&self.over);
        Ok(())
    }

    /// Reads the bytes.
    pub fn bytes(self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.count];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}

impl Draft {
    /// An empty file without an entry.
    pub fn new(path: Vec<u8>, node: Node) -> Self {
        Self { is_changed: true, ..Self::of(path, node, Vec::new(), 0) }
    }

    /// A file whose content is in lanes.
    pub fn of(path: Vec<u8>, node: Node, extents: Vec<Extent>, size: u64) -> Self {
        let (reader, buffer) = (None, Vec::new());
        Self { path: Some(path), node, size, extents, reader, buffer, buffer_at: 0, is_changed: false }
    }

    /// Writes at an offset.
    pub fn write(&mut self, writer: &mut LaneWriter, data: &[u8], offset: u64) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        let joins = (self.buffer_at..=buffer_end).contains(&offset)
            && (offset - self.buffer_at) as usize + data.len() <= BUFFER_SIZE_MAX;
        if !self.buffer.is_empty() && !joins {
            self.flush(writer)?;
        }
        self.touch();
        // Content that may be the whole file is kept for its entry: readers then need one record only.
        let may_be_all = self.extents.is_empty()
            && offset == 0
            && data.len() <= writer.together_size().min(BUFFER_SIZE_MAX);
        if data.len() >= DIRECT_SIZE_MIN && self.buffer.is_empty() && !may_be_all {
            if let Err(fault) = self.put(writer, offset, data) {
                // Nothing may exist beyond the end of the file.
                extents::truncate(&mut self.extents, self.size);
                return Err(fault);
            }
        } else {
            if self.buffer.is_empty() {
                self.buffer_at = offset;
            }
            let at = (offset - self.buffer_at) as usize;
            let within = data.len().min(self.buffer.len() - at);
            self.buffer[at..at + within].copy_from_slice(&data[..within]);
            self.buffer.extend_from_slice(&data[within..]);
        }
        self.size = self.size.max(offset + data.len() as u64);
        Ok(())
    }

    /// Begins a read of up to `length` bytes at `offset`, as the file is now. Makes its content in lanes readable.
    pub fn begin_read(
        &mut self,
        container: &Container,
        writer: Option<&mut LaneWriter>,
        offset: u64,
        length: usize,
    ) -> Result<Reading> {
        let count = self.size.saturating_sub(offset).min(length as u64) as usize;
        let end = offset + count as u64;
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        let (from, to) = (offset.max(self.buffer_at), end.min(buffer_end));
        let over = match from < to {
            true => self.buffer[(from - self.buffer_at) as usize..(to - self.buffer_at) as usize].to_vec(),
            false => Vec::new(),
        };
        let reader = match over.len() < count {
            true => Some(self.reader(container, writer, offset..end)?),
            false => None,
        };
        let over_at = if over.is_empty() { 0 } else { (from - offset) as usize };
        Ok(Reading { offset, count, reader, over_at, over })
    }

    /// The reader of content in lanes; makes `range` readable.
    fn reader(
        &mut self,
        container: &Container,
        writer: Option<&mut LaneWriter>,
        range: Range<u64>,
    ) -> Result<Arc<Mutex<FileReader>>> {
        if let Some(writer) = writer {
            let first = self.extents.partition_point(|extent| extent.end() <= range.start);
            let mut wanted = self.extents[first..].iter().take_while(|extent| extent.start < range.end);
            wanted.try_for_each(|extent| writer.make_readable(extent.lane, extent.address))?;
        }
        let (node, extents) = (&self.node, &self.extents);
        let open = || Arc::new(Mutex::new(container.open_extents(node.clone(), extents.clone())));
        Ok(self.reader.get_or_insert_with(open).clone())
    }

    /// Truncates the file, or extends it by zeros.
    pub fn truncate(&mut self, size: u64) {
        extents::truncate(&mut self.extents, size);
        self.reader = None;
        self.buffer.truncate(size.saturating_sub(self.buffer_at).min(self.buffer.len() as u64) as usize);
        self.size = size;
        self.touch();
    }

    /// Marks the content as changed.
    fn touch(&mut self) {
        (self.node.mtime, self.is_changed) = (wall(), true);
    }

    /// Number of bytes in memory only.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Puts the buffer to the lane.
    pub fn flush(&mut self, writer: &mut LaneWriter) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let put = self.put(writer, self.buffer_at, &buffer);
        if put.is_err() {
            // Kept, so that the flush can be retried.
            self.buffer = buffer;
        }
        put
    }

    /// The node and the inline content for an entry. All other content is put to the lane before.
    pub fn entry(&mut self, writer: &mut LaneWriter) -> Result<(Node, &[u8])> {
        let is_whole =
            self.extents.is_empty() && self.buffer_at == 0 && self.buffer.len() as u64 == self.size;
        if self.node.kind != FileKind::File || (is_whole && self.buffer.len() <= writer.together_size()) {
            return Ok((self.node_with(Content::Here), &self.buffer));
        }
        self.flush(writer)?;
        Ok((self.node_with(Content::Extents(self.extents.clone())), &[]))
    }

    /// An entry with the current state was put; `content` is the location of its inline content.
    pub fn published(&mut self, content: Option<Extent>) {
        self.is_changed = false;
        self.buffer = Vec::new();
        if let Some(extent) = content.filter(|extent| extent.length > 0) {
            extents::lay(&mut self.extents, extent);
            self.reader = None;
        }
    }

    fn put(&mut self, writer: &mut LaneWriter, offset: u64, data: &[u8]) -> Result<()> {
        let mut pieces = Vec::new();
        let put = writer.put_pieces(offset, data, &mut pieces);
        pieces.into_iter().for_each(|piece| extents::lay(&mut self.extents, piece));
        self.reader = None;
        put
    }

    fn node_with(&self, content: Content) -> Node {
        Node { size: self.size, content, ..self.node.clone() }
    }
}
