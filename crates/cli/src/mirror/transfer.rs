//! Sends the content of one file: ranges of a file that the mirror has, else the whole file, or the blocks in which the mirror differs.

use super::protocol::{BLOCK_SIZE, HASH_SIZE, HASHES_MAX, Order, Reply, staged_name};
use super::session::Session;
use super::source::{attributes_of, hash_blocks};
use std::ops::Range;
use tameike_core::changes::Content;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{Access, FileStat, Seek, SharedFile};

/// A file that is sent.
struct Sent<'a> {
    path: &'a [u8],
    file: &'a dyn SharedFile,
    is_staged: bool,
    /// The mirror's file reads as zeros where nothing was sent.
    is_new: bool,
}

impl Session<'_> {
    /// Sends a regular file. `content` may differ at the mirror, if that has the file.
    pub(super) fn send_file(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        content: Content,
        is_known: bool,
    ) -> Result<()> {
        let mut attributes = attributes_of(self.source, path, stat)?;
        let is_small = stat.size <= BLOCK_SIZE as u64;
        if is_known && content == Content::Unchanged {
            return self.send_end(path, attributes, false);
        }
        let file = self.source.open(path, Access::Read)?;
        file.revalidate()?;
        if file.stat()?.inode_id() != stat.inode_id() {
            // Another file has the path since, which is recorded.
            return Ok(());
        }
        self.learned.push((path.to_vec(), stat.inode_id()));
        match content {
            Content::Ranges(ranges) if is_known => {
                let sent = Sent { path, file: &*file, is_staged: false, is_new: false };
                let ranges = ranges.iter().map(|range| range.start..range.end.min(stat.size));
                ranges.into_iter().try_for_each(|range| self.send_range(&sent, range))?;
                self.send_end(path, attributes, false)
            }
            _ if is_small => {
                let mut data = vec![0; stat.size as usize];
                let size = file.read_at(&mut data, 0)?;
                data.truncate(size);
                attributes.size = size as u64;
                self.bytes += size as u64;
                self.touch(path);
                self.connection.send(&Order::Put { path: path.to_vec(), attributes }, &data)
            }
            _ => {
                let is_staged = self.send_large(path, &*file, stat.size)?;
                self.send_end(path, attributes, is_staged)
            }
        }
    }

    /// Sends the parts of a large file that the mirror lacks. Returns true if they are in a staged file.
    fn send_large(&mut self, path: &[u8], file: &dyn SharedFile, size: u64) -> Result<bool> {
        let name = staged_name(path);
        let is_begun = self.staged.remove(&name);
        let is_staged = is_begun || self.hashes(path, false, 0, 1)?.is_empty();
        let sent = Sent { path, file, is_staged, is_new: is_staged && !is_begun };
        if is_staged {
            self.touch(path);
            self.connection.send(&Order::Stage { path: path.to_vec(), size }, &[])?;
        }
        if sent.is_new {
            self.send_range(&sent, 0..size)?;
            return Ok(true);
        }
        let blocks = size.div_ceil(BLOCK_SIZE as u64);
        for first in (0..blocks).step_by(HASHES_MAX as usize) {
            let count = HASHES_MAX.min((blocks - first) as u32);
            let there = self.hashes(path, is_staged, first, count)?;
            let there: Vec<_> = there.chunks_exact(HASH_SIZE).collect();
            for number in first..first + u64::from(count) {
                let here = hash_blocks(file, number, 1)?;
                if there.get((number - first) as usize).is_none_or(|hash| *hash != here) {
                    let begin = number * BLOCK_SIZE as u64;
                    self.send_range(&sent, begin..(begin + BLOCK_SIZE as u64).min(size))?;
                }
                self.connection.keep_alive()?;
            }
        }
        Ok(is_staged)
    }

    /// Returns the hashes of blocks of the mirror's file, none if it has no such file.
    fn hashes(&mut self, path: &[u8], is_staged: bool, first: u64, count: u32) -> Result<Vec<u8>> {
        let order = Order::Hashes { path: path.to_vec(), is_staged, first, count };
        match self.ask(&order)? {
            (Reply::Hashes, hashes) => Ok(hashes),
            _ => Err(Fault::new(Errno::EPROTO, "the receiver sent an unexpected reply")),
        }
    }

    /// Sends a range, without its holes.
    fn send_range(&mut self, sent: &Sent<'_>, range: Range<u64>) -> Result<()> {
        let Sent { path, file, is_staged, is_new } = *sent;
        let mut at = range.start;
        while at < range.end {
            // File systems that do not know their holes report data everywhere, or an error.
            let data = match file.seek(Seek::Data, at) {
                Ok(data) => data.clamp(at, range.end),
                Err(fault) if fault.errno == Errno::ENXIO => range.end,
                Err(_) => at,
            };
            if data > at {
                if !is_new {
                    let (path, length) = (path.to_vec(), data - at);
                    self.connection.send(&Order::Clear { path, is_staged, offset: at, length }, &[])?;
                }
                at = data;
                continue;
            }
            let end = file.seek(Seek::Hole, at).unwrap_or(range.end).clamp(at + 1, range.end);
            at = self.send_data(sent, at..end)?;
            if at < end {
                // The file was truncated, which is recorded.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends data, and returns the offset of its end, which is earlier if the file has become shorter.
    fn send_data(&mut self, sent: &Sent<'_>, range: Range<u64>) -> Result<u64> {
        let mut block = vec![0; BLOCK_SIZE];
        let mut at = range.start;
        while at < range.end {
            let size = (range.end - at).min(BLOCK_SIZE as u64) as usize;
            let count = sent.file.read_at(&mut block[..size], at)?;
            if count == 0 {
                break;
            }
            let (path, is_staged) = (sent.path.to_vec(), sent.is_staged);
            self.connection.send(&Order::Write { path, is_staged, offset: at }, &block[..count])?;
            at += count as u64;
            self.bytes += count as u64;
        }
        Ok(at)
    }
}
