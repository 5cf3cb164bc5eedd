//! Payloads with the byte ranges of a unit that they fill.

use super::record::{BLOCK, blocks_of};
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, Result};
use tameike_io::Payload;

/// Byte ranges of one unit, with a payload that has their bytes one after another.
#[derive(Clone)]
pub struct Pieces {
    ranges: RangeSet,
    payload: Payload,
}

impl Pieces {
    /// Assigns the bytes of `payload` to `ranges`, in order.
    ///
    /// # Errors
    /// `EINVAL` if the ranges are invalid or their total length differs from the payload's.
    pub fn new(ranges: RangeSet, payload: Payload) -> Result<Self> {
        // Checks the order first: only then can the length not overflow.
        if !ranges.is_in_order()
            || ranges.end() as usize > UNIT_SIZE
            || ranges.len() as usize != payload.len()
        {
            let message =
                format!("a payload of {} bytes does not match the byte ranges of a unit", payload.len());
            return Err(Fault::new(Errno::EINVAL, message));
        }
        Ok(Self { ranges, payload })
    }

    /// Assigns the bytes of `payload` to one range from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if they exceed the unit.
    pub fn at(offset: u32, payload: Payload) -> Result<Self> {
        let end = u64::from(offset) + payload.len() as u64;
        let end = u32::try_from(end).map_err(|_| Errno::EINVAL)?;
        Self::new((offset..end).into(), payload)
    }

    /// The byte ranges.
    pub fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// The bytes of the ranges, one after another.
    pub fn into_payload(self) -> Payload {
        self.payload
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The blocks that have bytes of the ranges.
    pub(super) fn blocks(&self) -> RangeSet {
        self.ranges.iter().map(|range| blocks_of(&range)).collect()
    }

    /// The blocks that the ranges fill only in part, ascending.
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

    /// The payload, if it is one contiguous range.
    pub(super) fn in_one(&self) -> Option<&Payload> {
        (self.ranges.count() == 1).then_some(&self.payload)
    }

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
