//! Bytes, and where in a unit they go.

use super::record::{BLOCK, blocks_of};
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, Result};
use tameike_io::Payload;

/// Pieces of one unit: the payload has the bytes of the ranges, one after another.
#[derive(Clone)]
pub struct Pieces {
    ranges: RangeSet,
    payload: Payload,
}

impl Pieces {
    /// The bytes of `payload` as those of `ranges`.
    ///
    /// # Errors
    /// `EINVAL` when these are not so many bytes of a unit.
    pub fn new(ranges: RangeSet, payload: Payload) -> Result<Self> {
        // In order first: the number of bytes is counted then without overflow.
        if !ranges.is_in_order()
            || ranges.end() as usize > UNIT_SIZE
            || ranges.len() as usize != payload.len()
        {
            let message =
                format!("{} bytes came for bytes of a unit that are not so many, or are none", payload.len());
            return Err(Fault::new(Errno::EINVAL, message));
        }
        Ok(Self { ranges, payload })
    }

    /// The bytes of `payload` in one piece.
    ///
    /// # Errors
    /// `EINVAL` when they reach beyond the end of a unit.
    pub fn at(offset: u32, payload: Payload) -> Result<Self> {
        let end = u64::from(offset) + payload.len() as u64;
        let end = u32::try_from(end).map_err(|_| Errno::EINVAL)?;
        Self::new((offset..end).into(), payload)
    }

    /// Where they go.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The blocks that have bytes of them.
    pub(super) fn blocks(&self) -> RangeSet {
        self.ranges.iter().map(|range| blocks_of(&range)).collect()
    }

    /// The blocks that they fill in part only, ascending.
    pub(super) fn edges(&self) -> Vec<u32> {
        let ends = |range: Range<u32>| {
            [range.start, range.end]
                .into_iter()
                .filter(|end| !end.is_multiple_of(BLOCK))
                .map(|end| end / BLOCK)
        };
        let mut edges: Vec<u32> = self.ranges.iter().flat_map(ends).collect();
        edges.dedup();
        edges
    }

    /// Their bytes in one payload, if they lie in it as in the unit.
    pub(super) fn in_one(&self) -> Option<&Payload> {
        (self.ranges.count() == 1).then_some(&self.payload)
    }

    /// Copies them to their places in a unit.
    pub(super) fn copy_to(&self, unit: &mut [u8]) {
        let mut from = 0;
        for range in self.ranges.iter() {
            let length = range.len();
            unit[range.start as usize..range.end as usize]
                .copy_from_slice(&self.payload[from..from + length]);
            from += length;
        }
    }
}
