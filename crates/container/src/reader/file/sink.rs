//! Sinks for the bytes of a file: a buffer, or a callback.

use crate::format::external::Show;
use tameike_core::Result;

/// Receives the bytes of a file, by ascending offset.
pub trait Sink {
    /// Memory to read `size` whole bytes at `at` into directly, if the sink has such memory.
    fn buffer(&mut self, at: u64, size: usize) -> Option<&mut [u8]>;

    /// Receives bytes that were read elsewhere.
    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// Passes bytes to a callback.
pub struct Shown<'a>(pub Show<'a>);

impl Sink for Shown<'_> {
    fn buffer(&mut self, _: u64, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        (self.0)(at, bytes)
    }
}

/// Fills a buffer with the file from `offset` on; zeros in holes.
pub struct Filled<'a> {
    /// The buffer.
    pub buffer: &'a mut [u8],
    /// Its offset in the file.
    pub offset: u64,
    /// Number of bytes of the buffer that are final.
    pub done: usize,
}

impl Filled<'_> {
    /// The slice for the next bytes; fills the hole before it with zeros.
    fn next(&mut self, at: u64, size: usize) -> &mut [u8] {
        let start = (at - self.offset) as usize;
        self.buffer[self.done..start].fill(0);
        self.done = start + size;
        &mut self.buffer[start..self.done]
    }
}

impl Sink for Filled<'_> {
    fn buffer(&mut self, at: u64, size: usize) -> Option<&mut [u8]> {
        Some(self.next(at, size))
    }

    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.next(at, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }
}
