//! Location of the bytes of a read on a device that the program can read itself, as encoded in the window.
//!
//! ```text
//! window  0  number of the device                               u32
//!         4  bytes to skip in the first block                   u32
//!         8  number of parts                                    u32
//!        16  time at which they lie there, on the device's clock u64
//!        24  parts, of whole blocks: offset on the device, size 32 x 2 x u64
//!       536  CRC-32C of each block of all parts                 256 x u32
//! ```
//!
//! Devices are numbered for each program in the order of their first use. Before the agent uses a number, it sends a byte with that number on
//! the socket, with read-only descriptors of the device and its clock ([`tameike_io::disk::FreeClock`]).

use std::ops::Range;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT};
use tameike_core::wire::call::Run;
use tameike_core::wire::unit::UnitLocation;

/// Maximum number of devices that a program gets.
pub(crate) const DEVICES_MAX: usize = 16;
/// Size of an encoded location, in bytes.
pub(crate) const LOCATION_SIZE: usize = SUMS + BLOCKS_PER_UNIT * SUM_SIZE;

/// Maximum number of parts in which the bytes of a read may lie.
const PARTS_MAX: usize = 32;
const SUM_SIZE: usize = 4;
const TIME: usize = 16;
const PARTS: usize = 24;
const PART_SIZE: usize = 16;
const SUMS: usize = PARTS + PARTS_MAX * PART_SIZE;

/// An encoded location.
pub(crate) type LocationBytes = [u8; LOCATION_SIZE];

/// A decoded location: blocks that hold the bytes of a read, in order.
pub(crate) struct ExtentLocation<'a> {
    bytes: &'a LocationBytes,
    /// Number of the device.
    pub device: usize,
    /// Bytes to skip in the first block.
    pub skip: usize,
    /// Time at which they lie there, on the device's clock.
    pub time: u64,
    parts: usize,
}

/// Encodes the location of `range` of a unit; `None` if it has too many parts.
pub(crate) fn encode(device: usize, place: &UnitLocation, range: &Range<u32>) -> Option<LocationBytes> {
    let (mut bytes, mut parts) = ([0; LOCATION_SIZE], 0);
    for run in place.runs_of(range) {
        let part = bytes[PARTS..SUMS].chunks_exact_mut(PART_SIZE).nth(parts)?;
        part[..8].copy_from_slice(&run.at.to_ne_bytes());
        part[8..].copy_from_slice(&u64::from(run.length).to_ne_bytes());
        parts += 1;
    }
    let sums = place.sums_of(range);
    bytes[SUMS..SUMS + sums.len()].copy_from_slice(sums);
    let skip = range.start % BLOCK_SIZE as u32;
    for (at, word) in [device as u32, skip, parts as u32].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[TIME..PARTS].copy_from_slice(&place.time.to_ne_bytes());
    Some(bytes)
}

impl<'a> ExtentLocation<'a> {
    /// Decodes the location of `count` bytes; `None` for invalid bytes.
    pub fn decode(bytes: &'a LocationBytes, count: usize) -> Option<Self> {
        let word =
            |at: usize| bytes[at..].first_chunk().copied().map(u32::from_ne_bytes).map(|word| word as usize);
        let time = bytes[TIME..].first_chunk().copied().map(u64::from_ne_bytes)?;
        let location = Self { bytes, device: word(0)?, skip: word(4)?, time, parts: word(8)? };
        let is_known =
            location.device < DEVICES_MAX && location.skip < BLOCK_SIZE && location.parts <= PARTS_MAX;
        let blocks = (location.skip + count).div_ceil(BLOCK_SIZE);
        if !is_known || blocks > BLOCKS_PER_UNIT {
            return None;
        }
        let mut size = 0_u64;
        for run in location.parts() {
            let is_whole = run.length > 0 && run.length.is_multiple_of(BLOCK_SIZE as u32);
            run.at.checked_add(run.length.into()).filter(|_| is_whole)?;
            size += u64::from(run.length);
        }
        (size == (blocks * BLOCK_SIZE) as u64).then_some(location)
    }

    /// Locations of the blocks.
    pub fn parts(&self) -> impl Iterator<Item = Run> + use<'a> {
        let parts = self.bytes[PARTS..SUMS].chunks_exact(PART_SIZE).take(self.parts);
        let word = |bytes: &[u8]| bytes.first_chunk().copied().map_or(0, u64::from_ne_bytes);
        parts.map(move |part| {
            // An invalid length becomes 0, which is rejected.
            Run { at: word(part), length: u32::try_from(word(&part[8..])).unwrap_or(0) }
        })
    }

    /// Checksums of the blocks from `first` on, four bytes each.
    pub fn sums(&self, first: usize) -> &'a [u8] {
        &self.bytes[SUMS + first * SUM_SIZE..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tameike_core::limits::UNIT_SIZE;

    /// A unit in a number of parts; the checksum of a block is its number.
    fn unit(parts: u32) -> UnitLocation {
        let blocks = BLOCKS_PER_UNIT as u32;
        let starts: Vec<u32> = (0..parts).map(|part| part * blocks / parts).chain([blocks]).collect();
        let block = BLOCK_SIZE as u32;
        let runs = starts.windows(2).enumerate().map(|(number, ends)| Run {
            at: u64::from(1000 - number as u32) << 32,
            length: (ends[1] - ends[0]) * block,
        });
        let sums = (0..blocks).flat_map(u32::to_le_bytes).collect();
        UnitLocation { runs: runs.collect(), sums, time: 1 << 40 }
    }

    proptest! {
        #[test]
        fn each_byte_has_its_location(parts in 1..40_u32, start in 0..UNIT_SIZE as u32, size in 1..UNIT_SIZE as u32) {
            let place = unit(parts);
            let range = start..(start + size).min(UNIT_SIZE as u32);
            let Some(bytes) = encode(3, &place, &range) else {
                prop_assert!(parts as usize > PARTS_MAX);
                return Ok(());
            };
            let location = ExtentLocation::decode(&bytes, range.len()).expect("as encoded");
            prop_assert_eq!((location.device, location.skip, location.time), (3, start as usize % BLOCK_SIZE, 1 << 40));
            let blocks = |runs: &mut dyn Iterator<Item = Run>| -> Vec<u64> {
                runs.flat_map(|run| (0..u64::from(run.length)).step_by(BLOCK_SIZE).map(move |at| run.at + at)).collect()
            };
            let all = blocks(&mut place.runs.iter().copied());
            let first = start as usize / BLOCK_SIZE;
            let decoded = blocks(&mut location.parts());
            prop_assert_eq!(&all[first..(range.end as usize).div_ceil(BLOCK_SIZE)], &decoded[..]);
            prop_assert_eq!(&location.sums(0)[..4], &(first as u32).to_le_bytes()[..]);
        }

        #[test]
        fn garbage_is_rejected_or_has_the_right_size(words: [u32; 14], count in 0..2 * UNIT_SIZE) {
            let mut bytes = [0; LOCATION_SIZE];
            for (at, word) in words.into_iter().enumerate() {
                bytes[4 * at..4 * at + 4].copy_from_slice(&(word % 9).to_ne_bytes());
            }
            if let Some(location) = ExtentLocation::decode(&bytes, count) {
                let size: u64 = location.parts().map(|run| u64::from(run.length)).sum();
                prop_assert!(size >= (location.skip + count) as u64 && size <= UNIT_SIZE as u64);
            }
        }
    }
}
