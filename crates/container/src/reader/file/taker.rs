//! Who takes bytes of a file: memory that they fill, or somebody who looks at them.

use crate::format::external::Show;
use tameike_core::Result;

/// Takes bytes of a file, in order.
pub trait Taker {
    /// Where these may be read to at once, if all of them are wanted.
    fn room(&mut self, at: u64, size: usize) -> Option<&mut [u8]>;

    /// Takes what was not read there.
    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
}

/// Looks at bytes where they are.
pub struct Shown<'a>(pub Show<'a>);

impl Taker for Shown<'_> {
    fn room(&mut self, _: u64, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        (self.0)(at, bytes)
    }
}

/// Fills memory that stands for the file from `offset` on; zeros where nothing is.
pub struct Filled<'a> {
    /// The memory.
    pub buffer: &'a mut [u8],
    /// Where in the file it begins.
    pub offset: u64,
    /// How much of it is as it will be.
    pub done: usize,
}

impl Filled<'_> {
    /// The next bytes, behind zeros for what comes before them.
    fn next(&mut self, at: u64, size: usize) -> &mut [u8] {
        let start = (at - self.offset) as usize;
        self.buffer[self.done..start].fill(0);
        self.done = start + size;
        &mut self.buffer[start..self.done]
    }
}

impl Taker for Filled<'_> {
    fn room(&mut self, at: u64, size: usize) -> Option<&mut [u8]> {
        Some(self.next(at, size))
    }

    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.next(at, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }
}
