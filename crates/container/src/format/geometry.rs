//! Where a lane's bytes lie in its subfile.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Where the incarnations of the lanes begin in a subfile's header: a number of 4 bytes for each lane.
pub const INCARNATIONS_AT: u64 = 128;
/// No lane is longer: every place in a subfile has a number of 63 bits.
pub const ADDRESS_MAX: u64 = 1 << 46;

/// One writer's part of a subfile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId {
    /// Number of the subfile.
    pub subfile: u32,
    /// Number of the lane in it.
    pub lane: u32,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} of subfile {}", self.lane, self.subfile)
    }
}

/// How subfiles are divided: after the header, blocks of all lanes in turn. A lane's bytes have addresses from 0 on, as if its
/// blocks lay one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Bytes of a block: the stripe of the file system below. A power of two.
    pub block_size: u32,
    /// Lanes of each subfile.
    pub lanes: u32,
}

impl Geometry {
    /// Bytes before the first block of a lane: the header, filled up to whole blocks.
    fn header_size(&self) -> u64 {
        (INCARNATIONS_AT + 4 * u64::from(self.lanes)).next_multiple_of(self.block_size.into())
    }

    /// Where in its subfile the byte at `address` of a lane lies.
    pub fn offset(&self, lane: u32, address: u64) -> u64 {
        let block = u64::from(self.block_size);
        let blocks = (address / block) * u64::from(self.lanes) + u64::from(lane);
        self.header_size() + blocks * block + address % block
    }

    /// Addresses of a lane that lie in a subfile of `size` bytes.
    pub fn addresses(&self, lane: u32, size: u64) -> Range<u64> {
        let block = u64::from(self.block_size);
        let Some(rest) = size.checked_sub(self.offset(lane, 0)).filter(|rest| *rest > 0) else { return 0..0 };
        let turn = block * u64::from(self.lanes);
        0..rest / turn * block + (rest % turn).min(block)
    }

    /// Where the block of an address ends.
    pub fn block_end(&self, address: u64) -> u64 {
        let block = u64::from(self.block_size);
        (address / block + 1) * block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_two_addresses_share_a_place_and_a_size_has_those_before_it(
            shift in 12..24_u32, lanes in 1..9_u32, lane in 0..9_u32, address in 0..1_u64 << 40, size in 0..1_u64 << 30,
        ) {
            let geometry = Geometry { block_size: 1 << shift, lanes };
            let lane = lane % lanes;
            let next = geometry.offset(lane, address + 1);
            let other = geometry.offset((lane + 1) % lanes, address);
            prop_assert!(next > geometry.offset(lane, address));
            prop_assert!(lanes == 1 || other != geometry.offset(lane, address));
            let end = geometry.addresses(lane, size).end;
            prop_assert!(end == 0 || geometry.offset(lane, end - 1) < size);
            prop_assert!(geometry.offset(lane, end) >= size);
        }
    }
}
