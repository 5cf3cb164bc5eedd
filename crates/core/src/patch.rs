//! Patches: single bytes of pages, for many pages in one payload.
//!
//! A page is a block of [`BLOCK_SIZE`] bytes of a file, numbered from its start. A patch is a sequence of records, one per page,
//! with strictly ascending pages. All numbers are little-endian:
//!
//! ```text
//! record | page u32 | form u16 | body
//! body   | page                                                 form 0: all bytes of the page
//!        | count u16 | (start u16, length u16)... | bytes       form 1: runs of bytes, ascending and disjoint
//!        | mask, 512 bytes | page                               form 2: bit i of byte k selects byte 8 k + i of the page
//! ```
//!
//! A writer uses the form with the shortest record.

mod difference;
#[cfg(test)]
mod tests;

use crate::errno::{Errno, Fault, Result};
use crate::limits::BLOCK_SIZE;
use difference::{MASK_SIZE, MASK_WORDS};
use std::ops::Range;

pub use difference::{Difference, Runs};

/// Size of a page, in bytes.
pub const PAGE_SIZE: usize = BLOCK_SIZE;
/// The bytes of a page.
pub type Page = [u8; PAGE_SIZE];
/// Size of the largest record, in bytes.
pub const RECORD_SIZE_MAX: usize = HEADER_SIZE + MASK_SIZE + PAGE_SIZE;

const HEADER_SIZE: usize = 6;
/// Size of the number of runs, in bytes.
const COUNT_SIZE: usize = 2;
/// Size of the start and the length of a run, in bytes.
const RUN_SIZE: usize = 4;

/// The table of the only run of a whole page.
const WHOLE_TABLE: &[u8] = &[0, 0, PAGE_SIZE.to_le_bytes()[0], PAGE_SIZE.to_le_bytes()[1]];

const WHOLE: u16 = 0;
const RUNS: u16 = 1;
const MASKED: u16 = 2;

/// Writes a patch to a buffer.
pub struct PatchWriter<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> PatchWriter<'a> {
    /// Begins an empty patch.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Size of the patch so far, in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the patch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds a record with the changed bytes of a page, larger than the pages before; an empty difference adds none.
    /// Returns false, and changes nothing, if the record does not fit.
    pub fn push(&mut self, page: u32, difference: &Difference, after: &Page) -> bool {
        if difference.is_empty() {
            return true;
        }
        let by_runs = COUNT_SIZE + difference.run_count() * RUN_SIZE + difference.count();
        let (form, size) = match () {
            () if difference.count() == PAGE_SIZE => (WHOLE, PAGE_SIZE),
            () if by_runs <= MASK_SIZE + PAGE_SIZE => (RUNS, by_runs),
            () => (MASKED, MASK_SIZE + PAGE_SIZE),
        };
        if !self.begin(page, form, size) {
            return false;
        }
        match form {
            WHOLE => self.put(after),
            RUNS => self.put_runs(difference, after),
            _ => {
                difference.words().iter().for_each(|word| self.put(&word.to_le_bytes()));
                self.put(after);
            }
        }
        true
    }

    /// Adds a record with all bytes of a page, which `read` stores in the patch. The result is that of [`Self::push`].
    pub fn push_whole(&mut self, page: u32, read: impl FnOnce(&mut [u8])) -> bool {
        let fits = self.begin(page, WHOLE, PAGE_SIZE);
        if fits {
            read(&mut self.buffer[self.length..self.length + PAGE_SIZE]);
            self.length += PAGE_SIZE;
        }
        fits
    }

    /// Begins a record, if its body of `size` bytes fits.
    fn begin(&mut self, page: u32, form: u16, size: usize) -> bool {
        let fits = self.buffer.len() - self.length >= HEADER_SIZE + size;
        if fits {
            self.put(&page.to_le_bytes());
            self.put(&form.to_le_bytes());
        }
        fits
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn put_runs(&mut self, difference: &Difference, after: &Page) {
        self.put(&(difference.run_count() as u16).to_le_bytes());
        for run in difference.runs() {
            self.put(&run.start.to_le_bytes());
            self.put(&(run.end - run.start).to_le_bytes());
        }
        for run in difference.runs() {
            self.put(&after[usize::from(run.start)..usize::from(run.end)]);
        }
    }
}

/// Reads the records of a patch. The first malformed record gives `EINVAL`, and ends the iteration.
pub fn patches(bytes: &[u8]) -> impl Iterator<Item = Result<PagePatch<'_>>> {
    let (mut rest, mut first) = (bytes, 0);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = bytes.len() - rest.len();
        let record = record(&mut rest).and_then(|patch| match u64::from(patch.page) < first {
            true => Err("its pages are not in order"),
            false => Ok(patch),
        });
        match &record {
            Ok(patch) => first = u64::from(patch.page) + 1,
            Err(_) => rest = &[],
        }
        Some(record.map_err(|why| malformed(at, why)))
    })
}

fn malformed(at: usize, why: &str) -> Fault {
    Fault::new(Errno::EINVAL, format!("a patch is malformed in the record at byte {at}: {why}"))
}

/// Takes one record from the start of `bytes`.
fn record<'a>(bytes: &mut &'a [u8]) -> Result<PagePatch<'a>, &'static str> {
    let page = u32::from_le_bytes(*take(bytes)?);
    let content = match u16::from_le_bytes(*take(bytes)?) {
        WHOLE => Content::Whole(take(bytes)?),
        RUNS => {
            let count = usize::from(number(take(bytes)?));
            let table = take_slice(bytes, count * RUN_SIZE)?;
            let size = check_runs(table)?;
            Content::Runs { table, bytes: take_slice(bytes, size)? }
        }
        MASKED => Content::Masked { mask: take(bytes)?, bytes: take(bytes)? },
        _ => return Err("its form is unknown"),
    };
    Ok(PagePatch { page, content })
}

fn take_slice<'a>(bytes: &mut &'a [u8], size: usize) -> Result<&'a [u8], &'static str> {
    bytes.split_off(..size).ok_or("it is truncated")
}

fn take<'a, const SIZE: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; SIZE], &'static str> {
    let (taken, rest) = bytes.split_first_chunk().ok_or("it is truncated")?;
    *bytes = rest;
    Ok(taken)
}

fn number(bytes: &[u8; 2]) -> u16 {
    u16::from_le_bytes(*bytes)
}

/// The runs of a table.
fn runs_of(table: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    table.as_chunks::<RUN_SIZE>().0.iter().map(|&[a, b, c, d]| {
        let start = usize::from(number(&[a, b]));
        start..start + usize::from(number(&[c, d]))
    })
}

/// Validates a table of runs, and returns their number of bytes.
fn check_runs(table: &[u8]) -> Result<usize, &'static str> {
    let (mut size, mut end) = (0, 0);
    for run in runs_of(table) {
        if run.start < end || run.is_empty() {
            return Err("its runs are not in order");
        }
        size += run.len();
        end = run.end;
    }
    if end <= PAGE_SIZE { Ok(size) } else { Err("a run exceeds the page") }
}

/// Changed bytes of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePatch<'a> {
    page: u32,
    content: Content<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content<'a> {
    Whole(&'a Page),
    Runs { table: &'a [u8], bytes: &'a [u8] },
    Masked { mask: &'a [u8; MASK_SIZE], bytes: &'a Page },
}

impl PagePatch<'_> {
    /// Number of the page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Size of the record, in bytes.
    pub fn size(&self) -> usize {
        let body = match &self.content {
            Content::Whole(_) => PAGE_SIZE,
            Content::Runs { table, bytes } => COUNT_SIZE + table.len() + bytes.len(),
            Content::Masked { .. } => MASK_SIZE + PAGE_SIZE,
        };
        HEADER_SIZE + body
    }

    /// Returns true if the patch replaces the whole page.
    pub fn is_whole(&self) -> bool {
        matches!(self.content, Content::Whole(_))
    }

    /// The changed bytes with their place in the page, if the record has few runs of them.
    pub fn runs(&self) -> Option<impl Iterator<Item = (usize, &[u8])>> {
        let (table, bytes): (&[u8], &[u8]) = match &self.content {
            Content::Whole(bytes) => (WHOLE_TABLE, *bytes),
            Content::Runs { table, bytes } => (table, bytes),
            Content::Masked { .. } => return None,
        };
        let mut rest = bytes;
        Some(runs_of(table).map(move |run| {
            let (new, more) = rest.split_at(run.len());
            rest = more;
            (run.start, new)
        }))
    }

    /// Changes the bytes of the patch in `page`, and no others.
    pub fn apply(&self, page: &mut Page) {
        match &self.content {
            Content::Whole(bytes) => *page = **bytes,
            Content::Runs { .. } => {
                for (start, new) in self.runs().into_iter().flatten() {
                    page[start..start + new.len()].copy_from_slice(new);
                }
            }
            Content::Masked { mask, bytes } => apply_masked(mask, bytes, page),
        }
    }
}

fn apply_masked(mask: &[u8; MASK_SIZE], bytes: &Page, page: &mut Page) {
    const SPAN: usize = PAGE_SIZE / MASK_WORDS;
    let spans = page.as_chunks_mut::<SPAN>().0.iter_mut().zip(bytes.as_chunks::<SPAN>().0);
    for ((old, new), bits) in spans.zip(mask.as_chunks::<8>().0) {
        match u64::from_le_bytes(*bits) {
            0 => {}
            u64::MAX => *old = *new,
            _ => {
                let words = old.as_chunks_mut::<8>().0.iter_mut().zip(new.as_chunks::<8>().0);
                for ((old, new), &bits) in words.zip(bits) {
                    let mask = difference::expand(bits);
                    let kept = u64::from_le_bytes(*old) & !mask;
                    *old = (kept | u64::from_le_bytes(*new) & mask).to_le_bytes();
                }
            }
        }
    }
}
