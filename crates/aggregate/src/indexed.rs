//! A lane whose entries go to an index, too.

use crate::Tally;
use parking_lot::Mutex;
use tameike_core::Result;
use tameike_store::container::{
    Brief, Content, Entry, Extent, IndexBuilder, IndexEntry, LaneEnd, LaneWriter, Node, Put,
};

/// A writer of a container, one of several.
pub struct IndexedWriter<'a> {
    writer: LaneWriter,
    index: &'a Mutex<IndexBuilder>,
    tally: &'a Tally,
}

impl<'a> IndexedWriter<'a> {
    pub fn new(writer: LaneWriter, index: &'a Mutex<IndexBuilder>, tally: &'a Tally) -> Self {
        Self { writer, index, tally }
    }

    /// Puts what has no content.
    pub fn put(&mut self, path: &[u8], version: u64, node: Node) -> Result<()> {
        let put = self.writer.put_entry(path, version, Some(node), &[])?;
        self.keep(put)
    }

    /// Puts a file as it is read, piece by piece. The outer fault is the container's, the inner one that of who reads.
    pub fn put_file(
        &mut self,
        path: &[u8],
        version: u64,
        node: Node,
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize>,
    ) -> Result<Result<()>> {
        let mut buffer = vec![0; self.writer.together_size_max().min(node.size as usize) + 1];
        let (mut extents, mut size) = (Vec::<Extent>::new(), 0);
        loop {
            let count = match read(&mut buffer, size) {
                Ok(count) => count,
                Err(fault) => return Ok(Err(fault)),
            };
            self.tally.add_bytes(count as u64);
            let is_last = count < buffer.len();
            if is_last && size == 0 {
                let put = self.writer.put(path, version, node, &buffer[..count])?;
                return self.keep(put).map(Ok);
            }
            self.writer.put_pieces(size, &buffer[..count], &mut extents)?;
            size += count as u64;
            if is_last {
                break;
            }
            buffer.resize(self.writer.piece_size(), 0);
        }
        let node = Node { size, content: Content::Extents(extents), ..node };
        self.put(path, version, node).map(Ok)
    }

    /// Makes all of it safe.
    pub fn finish(self) -> Result<Vec<LaneEnd>> {
        self.writer.finish()
    }

    fn keep(&self, (entry, put): (Entry, Put)) -> Result<()> {
        let Entry { path, version, node } = entry;
        let node = node.as_ref().map(Brief::of);
        let (lane, Put { address, size }) = (self.writer.lane(), put);
        self.index.lock().add(IndexEntry { path, version, lane, address, record_size: size, node })
    }
}
