//! Cells: the parts of a region that a program loads and stores as a whole.

use crate::rng::Rng;
use std::fmt::{Display, Formatter};
use tameike_core::patch::{PAGE_SIZE, Page};

/// How a program uses a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One memory at most stores to it between two barriers.
    Data,
    /// A number that processes count up while they hold this lock.
    Counter(u32),
    /// A number that processes add to at its home.
    Sum,
}

/// Bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its use.
    pub kind: Kind,
    /// The page.
    pub page: u32,
    /// Offset of the first byte in the page.
    pub start: usize,
    /// Number of bytes.
    pub count: usize,
    /// Distance between its bytes.
    pub stride: usize,
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { kind, page, start, count, stride } = self;
        write!(f, "{kind:?}, {count} bytes at {page}:{start}")?;
        if *stride > 1 { write!(f, " with a stride of {stride}") } else { Ok(()) }
    }
}

/// Byte of value `value` of a data cell: all bytes differ between a value and the 254 after it.
fn byte(value: u64, index: usize) -> u8 {
    match value {
        0 => 0,
        _ => 1 + ((value * 37 + index as u64 * 11) % 255) as u8,
    }
}

impl Cell {
    /// Offsets of its bytes in the region.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let start = self.page as usize * PAGE_SIZE + self.start;
        (0..self.count).map(move |index| start + index * self.stride)
    }

    /// Its bytes in its page.
    pub fn of_page(&self, page: &Page) -> Vec<u8> {
        (0..self.count).map(|index| page[self.start + index * self.stride]).collect()
    }

    /// The bytes of a value.
    pub fn bytes(&self, value: u64) -> Vec<u8> {
        match self.kind {
            Kind::Data => (0..self.count).map(|index| byte(value, index)).collect(),
            Kind::Counter(_) | Kind::Sum => value.to_le_bytes().to_vec(),
        }
    }

    /// The value with these bytes from `oldest` to `latest`.
    pub fn value(&self, bytes: &[u8], oldest: u64, latest: u64) -> Option<u64> {
        match self.kind {
            Kind::Data => (oldest..=latest).find(|&value| self.bytes(value) == bytes),
            Kind::Counter(_) | Kind::Sum => {
                let number = u64::from_le_bytes(bytes.try_into().ok()?);
                (oldest..=latest).contains(&number).then_some(number)
            }
        }
    }
}

/// Adds cells that fill a page in one of several ways.
pub(super) fn draw_page(rng: &mut Rng, page: u32, locks: &mut u32, cells: &mut Vec<Cell>) {
    let mut add = |kind, start, count, stride| cells.push(Cell { kind, page, start, count, stride });
    match rng.below(8) {
        0 => add(Kind::Data, 0, PAGE_SIZE, 1),
        1 => (0..2).for_each(|half| add(Kind::Data, half * PAGE_SIZE / 2, PAGE_SIZE / 2, 1)),
        2 => (0..2).for_each(|start| add(Kind::Data, start, PAGE_SIZE / 2, 2)),
        3 => (0..4).for_each(|start| add(Kind::Data, start, PAGE_SIZE / 4, 4)),
        _ => {
            for start in [0, 1, 2, 7, 101, 300, 4094, 4095] {
                add(Kind::Data, start, 1, 1);
            }
            (0..2).for_each(|part| add(Kind::Data, 1000 + 400 * part, 400, 1));
            add(Kind::Sum, 16, 8, 1);
            add(Kind::Sum, 4080, 8, 1);
            for start in [8, 24] {
                add(Kind::Counter(*locks), start, 8, 1);
                *locks += rng.below(2) as u32;
            }
        }
    }
}
