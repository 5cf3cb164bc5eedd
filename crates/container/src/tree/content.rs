//! Content of files, read piece by piece without their holes.
//!
//! A hole is skipped only if it has at least [`HOLE_SIZE_MIN`] bytes, and a file is split into at most about [`RANGES_MAX`] ranges: a
//! container entry lists each of them.

use crate::FileReader;
use rustix::fs::SeekFrom;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{FileStat, Seek, SharedFile};

/// Smaller holes are read as zeros.
const HOLE_SIZE_MIN: u64 = 64 << 10;
/// Approximate maximum of data ranges of a file.
const RANGES_MAX: u64 = 1 << 15;
/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// End of data that continues to the end of the file, even if the file grows.
const END: u64 = u64::MAX;

/// Source of a file's content.
pub trait Input {
    /// Reads at `offset` until the buffer is full or the file ends; returns the number of bytes read.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// The next data at or after `offset`. It ends at [`END`] if no hole follows; `None` if only a hole follows.
    fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>>;
}

/// The next range to read at or after `offset` of a file of `size` bytes; `None` if the rest is a hole.
pub fn next_range(input: &mut dyn Input, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
    let hole_min = HOLE_SIZE_MIN.max(size / RANGES_MAX);
    let Some(mut range) = input.data_at(offset)? else { return Ok(None) };
    if range.start - offset < hole_min {
        range.start = offset;
    }
    while range.end < END {
        match input.data_at(range.end)? {
            Some(next) if next.start - range.end < hole_min => range.end = next.end,
            _ => break,
        }
    }
    Ok(Some(range))
}

/// Returns true if a file takes so much less space than its size that searching for holes pays.
fn may_have_holes(blocks: u64, size: u64) -> bool {
    blocks.saturating_mul(STAT_BLOCK).saturating_add(HOLE_SIZE_MIN) <= size
}

/// The next data of a file of `size` bytes, according to `SEEK_DATA` and `SEEK_HOLE`.
fn data_by(
    mut seek: impl FnMut(Seek, u64) -> Result<u64>,
    offset: u64,
    size: u64,
) -> Result<Option<Range<u64>>> {
    let start = match seek(Seek::Data, offset) {
        Ok(start) => start.max(offset),
        Err(fault) if fault.errno == Errno::ENXIO => return Ok(None),
        // The file system does not support the search for holes.
        Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            return Ok(Some(offset..END));
        }
        Err(fault) => return Err(fault),
    };
    let end = match seek(Seek::Hole, start) {
        Ok(end) => end,
        // The file became shorter; the reader finds its end.
        Err(fault) if fault.errno == Errno::ENXIO => END,
        Err(fault) => return Err(fault),
    };
    Ok(Some(start..if end >= size || end <= start { END } else { end }))
}

/// A file of a [`SharedFs`](tameike_io::shared::SharedFs).
pub struct FileInput {
    file: Arc<dyn SharedFile>,
    size: u64,
    has_holes: bool,
}

impl FileInput {
    /// `stat` is that of `file`.
    pub fn new(file: Arc<dyn SharedFile>, stat: &FileStat) -> Self {
        Self { file, size: stat.size, has_holes: may_have_holes(stat.blocks, stat.size) }
    }
}

impl Input for FileInput {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut count = 0;
        while count < buffer.len() {
            match self.file.read_some(&mut buffer[count..], offset + count as u64)? {
                0 => break,
                more => count += more,
            }
            // A short read at the expected end saves the read that returns 0.
            if count < buffer.len() && offset + count as u64 == self.size {
                break;
            }
        }
        Ok(count)
    }

    fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>> {
        match self.has_holes {
            true => data_by(|what, at| self.file.seek(what, at), offset, self.size),
            false => Ok(Some(offset..END)),
        }
    }
}

/// A file opened by path on this host.
pub struct LocalInput<'a> {
    file: &'a File,
    size: u64,
    has_holes: bool,
}

impl<'a> LocalInput<'a> {
    /// Returns the input, and the size of the file.
    pub fn new(file: &'a File) -> std::io::Result<(Self, u64)> {
        let found = file.metadata()?;
        let (size, has_holes) = (found.len(), may_have_holes(found.blocks(), found.len()));
        Ok((Self { file, size, has_holes }, size))
    }
}

impl Input for LocalInput<'_> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset).map_err(|error| Fault::from_os("reading", &error))
    }

    fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>> {
        let seek = |what, at| {
            let from = match what {
                Seek::Data => SeekFrom::Data(at),
                Seek::Hole => SeekFrom::Hole(at),
            };
            rustix::fs::seek(self.file, from).map_err(|error| Fault::from_os("seeking", &error.into()))
        };
        if self.has_holes { data_by(seek, offset, self.size) } else { Ok(Some(offset..END)) }
    }
}

impl Input for FileReader {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Self::read_at(self, buffer, offset)
    }

    fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>> {
        let size = self.node().size;
        let data = self.data(offset);
        Ok(data.map(|data| data.start..if data.end >= size { END } else { data.end }))
    }
}

/// `None`, for what is not a regular file, has no content.
impl<T: Input> Input for Option<T> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.as_mut().map_or(Ok(0), |input| input.read_at(buffer, offset))
    }

    fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>> {
        self.as_mut().map_or(Ok(None), |input| input.data_at(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of data, and zeros elsewhere.
    struct Ranges(Vec<Range<u64>>);

    impl Input for Ranges {
        fn read_at(&mut self, _: &mut [u8], _: u64) -> Result<usize> {
            Ok(0)
        }

        fn data_at(&mut self, offset: u64) -> Result<Option<Range<u64>>> {
            let found = self.0.iter().find(|range| range.end > offset);
            Ok(found.map(|range| range.start.max(offset)..range.end))
        }
    }

    fn found(ranges: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
        let (mut input, mut found, mut at) = (Ranges(ranges), Vec::new(), 0);
        while let Some(range) = next_range(&mut input, at, size).expect("no fault") {
            at = range.end;
            found.push(range);
        }
        found
    }

    #[test]
    fn small_holes_are_read() {
        let hole = HOLE_SIZE_MIN;
        assert_eq!(found(vec![], 1 << 30), []);
        assert_eq!(found(vec![hole - 1..hole, 2 * hole - 1..2 * hole], 1 << 20), vec![0..2 * hole]);
        assert_eq!(
            found(vec![hole..hole + 1, 2 * hole + 1..END], 1 << 20),
            [hole..hole + 1, 2 * hole + 1..END]
        );
    }

    #[test]
    fn a_file_is_in_no_more_ranges_than_an_entry_can_name() {
        let (block, size) = (4096, 1 << 32);
        let ranges = (0..size / block / 20).map(|number| number * 20 * block..(number * 20 + 1) * block);
        let found = found(ranges.collect(), size);
        assert!(found.len() as u64 <= RANGES_MAX + 1, "{}", found.len());
    }
}
