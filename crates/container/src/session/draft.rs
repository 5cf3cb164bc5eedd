//! A file that is being written: what is in memory of it, and what is in the lane.

use super::extents;
use crate::{Container, Content, Extent, FileReader, LaneWriter, Node};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{FileKind, Result};
use tameike_io::os::process::wall;

/// Bytes that a file gathers in memory before they go to the lane.
const BUFFER_SIZE_MAX: usize = 1 << 20;
/// What is written at once and is not less goes to the lane without being gathered, unless it may be all of the file.
const DIRECT_SIZE_MIN: usize = 256 << 10;

/// A file that somebody has open for writing.
pub struct Draft {
    /// Where it is; nowhere when that name was removed.
    pub path: Option<Vec<u8>>,
    /// All but size and content is as it will be.
    pub node: Node,
    /// Bytes of content.
    pub size: u64,
    /// Where what is in lanes is.
    extents: Vec<Extent>,
    /// Reads these, as long as they are what they were.
    reader: Option<Arc<Mutex<FileReader>>>,
    /// What is only in memory: it lies over the extents, and begins at `buffer_at`.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// Whether no entry tells of it as it is.
    pub is_changed: bool,
}

/// A read of a file as it is at one moment, for which neither file nor writer is needed any more: the file system may take its time.
pub struct Reading {
    offset: u64,
    count: usize,
    /// Of what is in lanes, where not all is in memory.
    reader: Option<Arc<Mutex<FileReader>>>,
    /// What is in memory lies over that, from there on.
    over_at: usize,
    over: Vec<u8>,
}

impl Reading {
    /// How many bytes there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Reads them into as much room.
    ///
    /// # Errors
    /// `EIO` when what is in lanes is damaged, and what the file system says.
    pub fn fill(self, into: &mut [u8]) -> Result<()> {
        if let Some(reader) = self.reader {
            reader.lock().fill(into, self.offset)?;
        }
        into[self.over_at..self.over_at + self.over.len()].copy_from_slice(&self.over);
        Ok(())
    }

    /// The bytes.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub fn bytes(self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.count];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}

impl Draft {
    /// An empty file, of which no entry tells yet.
    pub fn new(path: Vec<u8>, node: Node) -> Self {
        Self { is_changed: true, ..Self::of(path, node, Vec::new(), 0) }
    }

    /// A file whose content is in lanes.
    pub fn of(path: Vec<u8>, node: Node, extents: Vec<Extent>, size: u64) -> Self {
        let (reader, buffer) = (None, Vec::new());
        Self { path: Some(path), node, size, extents, reader, buffer, buffer_at: 0, is_changed: false }
    }

    /// Writes at an offset.
    ///
    /// # Errors
    /// What the file system says.
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
        // What may be all of the file is kept for its entry: who opens it has it with that.
        let may_be_all = self.extents.is_empty()
            && offset == 0
            && data.len() <= writer.together_size().min(BUFFER_SIZE_MAX);
        if data.len() >= DIRECT_SIZE_MIN && self.buffer.is_empty() && !may_be_all {
            if let Err(fault) = self.put(writer, offset, data) {
                // Behind the end of the file there is nothing.
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

    /// A read at an offset of up to `length` bytes, until the file ends, as it is now. What is in lanes can be read then.
    ///
    /// # Errors
    /// What the file system says.
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

    /// Reads what is in lanes, which of this range can be read then.
    fn reader(
        &mut self,
        container: &Container,
        writer: Option<&mut LaneWriter>,
        range: Range<u64>,
    ) -> Result<Arc<Mutex<FileReader>>> {
        if let Some(writer) = writer {
            let first = self.extents.partition_point(|extent| extent.end() <= range.start);
            let mut wanted = self.extents[first..].iter().take_while(|extent| extent.start < range.end);
            wanted.try_for_each(|extent| writer.hand_over(extent.lane, extent.address))?;
        }
        let (node, extents) = (&self.node, &self.extents);
        let open = || Arc::new(Mutex::new(container.open_extents(node.clone(), extents.clone())));
        Ok(self.reader.get_or_insert_with(open).clone())
    }

    /// Cuts it, or makes it longer by zeros.
    pub fn truncate(&mut self, size: u64) {
        extents::truncate(&mut self.extents, size);
        self.reader = None;
        self.buffer.truncate(size.saturating_sub(self.buffer_at).min(self.buffer.len() as u64) as usize);
        self.size = size;
        self.touch();
    }

    /// Its content is another one from now on.
    fn touch(&mut self) {
        (self.node.mtime, self.is_changed) = (wall(), true);
    }

    /// Bytes that are only in memory.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Gives what is in memory to the lane.
    ///
    /// # Errors
    /// What the file system says.
    pub fn flush(&mut self, writer: &mut LaneWriter) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let put = self.put(writer, self.buffer_at, &buffer);
        if put.is_err() {
            // Nothing of it is lost: it may be tried again.
            self.buffer = buffer;
        }
        put
    }

    /// What an entry tells of it now, and the content that goes with the entry. All else is in the lane then.
    ///
    /// # Errors
    /// What the file system says.
    pub fn entry(&mut self, writer: &mut LaneWriter) -> Result<(Node, &[u8])> {
        let is_whole =
            self.extents.is_empty() && self.buffer_at == 0 && self.buffer.len() as u64 == self.size;
        if self.node.kind != FileKind::File || (is_whole && self.buffer.len() <= writer.together_size()) {
            return Ok((self.node_with(Content::Here), &self.buffer));
        }
        self.flush(writer)?;
        Ok((self.node_with(Content::Extents(self.extents.clone())), &[]))
    }

    /// An entry tells of it; with `content` in its own record, at this place.
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
