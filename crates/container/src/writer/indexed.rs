//! A lane writer that adds its entries to an index, too.

use crate::tree::content::{Input, next_range};
use crate::{Brief, Content, Entry, Extent, IndexBuilder, IndexEntry, LaneEnd, LaneWriter, Node, Put, Tally};
use parking_lot::Mutex;
use tameike_core::Result;

/// One of several writers of a container that share an index.
pub struct IndexedWriter<'a> {
    writer: LaneWriter,
    index: &'a Mutex<IndexBuilder>,
    tally: &'a Tally,
}

impl<'a> IndexedWriter<'a> {
    pub fn new(writer: LaneWriter, index: &'a Mutex<IndexBuilder>, tally: &'a Tally) -> Self {
        Self { writer, index, tally }
    }

    /// Puts a file without content.
    pub fn put(&mut self, path: &[u8], version: u64, node: Node) -> Result<()> {
        let put = self.writer.put_entry(path, version, Some(node), &[])?;
        self.keep(put)
    }

    /// Puts a file while it is read, without its holes. The outer error is the container's, the inner one the reader's.
    pub fn put_file(
        &mut self,
        path: &[u8],
        version: u64,
        node: Node,
        input: &mut dyn Input,
    ) -> Result<Result<()>> {
        let mut buffer = vec![0; self.writer.together_size_max().min(node.size as usize) + 1];
        let (mut extents, mut at, mut end) = (Vec::<Extent>::new(), 0, None);
        while end.is_none() {
            let range = match next_range(input, at, node.size) {
                Ok(Some(range)) => range,
                // The rest is a hole.
                Ok(None) => break,
                Err(fault) => return Ok(Err(fault)),
            };
            at = range.start;
            while at < range.end && end.is_none() {
                let wanted = (range.end - at).min(buffer.len() as u64) as usize;
                let data = match input.read_at(&mut buffer[..wanted], at) {
                    Ok(count) => &buffer[..count],
                    Err(fault) => return Ok(Err(fault)),
                };
                if data.len() < wanted {
                    end = Some(at + data.len() as u64);
                    if at == 0 {
                        self.tally.add_bytes(data.len() as u64);
                        let put = self.writer.put(path, version, node, data)?;
                        return self.keep(put).map(Ok);
                    }
                }
                self.writer.put_pieces(at, data, &mut extents)?;
                at += data.len() as u64;
                buffer.resize(self.writer.piece_size(), 0);
            }
        }
        let size = end.unwrap_or(at.max(node.size));
        self.tally.add_bytes(size);
        let content = if size == 0 { Content::Here } else { Content::Extents(extents) };
        self.put(path, version, Node { size, content, ..node }).map(Ok)
    }

    /// Makes everything durable.
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
