//! Checksums that stay with a payload on its way, so that its bytes are gone through once at each end.

use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;

/// Size of one checksum, in bytes.
const SUM_SIZE: usize = 4;

/// CRC-32C of each block of [`BLOCK_SIZE`] bytes, from the first byte on; the last block may be shorter.
///
/// The fabric proves a payload with them, and the store keeps those of whole blocks in its index: the same numbers, which
/// whoever has seen the bytes hands to the next.
#[derive(Clone, Debug)]
pub struct BlockSums {
    /// Little-endian.
    all: Arc<[u8]>,
    /// The bytes of `all` that are meant.
    part: Range<usize>,
}

impl BlockSums {
    /// Those of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes.chunks(BLOCK_SIZE).flat_map(|block| crc32c::crc32c(block).to_le_bytes()))
    }

    /// Those that [`Self::as_bytes`] told.
    pub fn from_bytes(bytes: impl IntoIterator<Item = u8>) -> Self {
        let all: Arc<[u8]> = bytes.into_iter().collect();
        Self { part: 0..all.len(), all }
    }

    /// Four bytes for each block, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.all[self.part.clone()]
    }

    /// One checksum for all of it: the CRC-32C of the checksums.
    pub fn digest(&self) -> u32 {
        crc32c::crc32c(self.as_bytes())
    }

    /// Those of a part of the `length` bytes that they are of, if it consists of whole blocks of these.
    pub(super) fn of_part(&self, length: u32, part: Range<u32>) -> Option<Self> {
        let (start, end) = (part.start as usize, part.end as usize);
        let is_whole = start % BLOCK_SIZE == 0 && (end % BLOCK_SIZE == 0 || part.end == length);
        if !is_whole || part.end > length {
            return None;
        }
        let place = |block: usize| self.part.start + block * SUM_SIZE;
        Some(Self { all: self.all.clone(), part: place(start / BLOCK_SIZE)..place(end.div_ceil(BLOCK_SIZE)) })
    }
}

/// Whether the blocks of which `parts` are the bytes, one after the other, have these checksums (four bytes for each,
/// little-endian). They are whole blocks; nothing is allocated.
pub fn blocks_have_sums(parts: &[&[u8]], sums: &[u8]) -> bool {
    let mut sums = sums.chunks_exact(SUM_SIZE);
    let (mut sum, mut summed) = (0, 0);
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(rest.len().min(BLOCK_SIZE - summed));
            (sum, summed, rest) = (crc32c::crc32c_append(sum, some), summed + some.len(), after);
            if summed == BLOCK_SIZE {
                if sums.next() != Some(&sum.to_le_bytes()) {
                    return false;
                }
                (sum, summed) = (0, 0);
            }
        }
    }
    summed == 0
}

impl PartialEq for BlockSums {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for BlockSums {}
