//! Mapping of lane addresses to offsets in a subfile.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Offset of the lanes' incarnations in a subfile's header: 4 bytes per lane.
pub const INCARNATIONS_AT: u64 = 128;
/// Maximum size of a lane, so that every offset in a subfile fits in 63 bits.
pub const ADDRESS_MAX: u64 = 1 << 46;

/// Identifier of a lane, the part of a subfile that one writer appends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId {
    /// Number of the subfile.
    pub subfile: u32,
    /// Number of the lane in the subfile.
    pub lane: u32,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} of subfile {}", self.lane, self.subfile)
    }
}

/// Division of subfiles: after the header, blocks of all lanes, round-robin. The bytes of a lane have consecutive addresses from 0, as if
/// its blocks were contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Block size in bytes, a power of two: the stripe size of the file system below.
    pub block_size: u32,
    /// Number of lanes of each subfile.
    pub lanes: u32,
}

impl Geometry {
    /// Size of the header, padded to whole blocks.
    fn header_size(&self) -> u64 {
        (INCARNATIONS_AT + 4 * u64::from(self.lanes)).next_multiple_of(self.block_size.into())
    }

    /// Offset in the subfile of an address of a lane.
    pub fn offset(&self, lane: u32, address: u64) -> u64 {
        let block = u64::from(self.block_size);
        let blocks = (address / block) * u64::from(self.lanes) + u64::from(lane);
        self.header_size() + blocks * block + address % block
    }

    /// Addresses of a lane that exist in a subfile of `size` bytes.
    pub fn addresses(&self, lane: u32, size: u64) -> Range<u64> {
        let block = u64::from(self.block_size);
        let Some(rest) = size.checked_sub(self.offset(lane, 0)).filter(|rest| *rest > 0) else { return 0..0 };
        let turn = block * u64::from(self.lanes);
        0..rest / turn * block + (rest % turn).min(block)
    }

    /// End address of the block that contains an address.
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
        fn addresses_map_to_distinct_ascending_offsets_and_sizes_to_the_addresses_below(
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
