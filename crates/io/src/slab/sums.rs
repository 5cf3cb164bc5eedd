//! Checksums that travel with a payload, so that its bytes are hashed once at each end, and stay with the bytes in a frame.

use crate::{Crc32c, crc32c};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};

const BLOCK: u32 = BLOCK_SIZE as u32;
const BLOCKS: usize = UNIT_SIZE / BLOCK_SIZE;

/// Size of one checksum, in bytes.
const SUM_SIZE: usize = 4;

/// CRC-32C of each block of [`BLOCK_SIZE`] bytes, from the first byte on; the last block may be shorter.
///
/// The fabric verifies payloads with them, and the store keeps those of whole blocks in its index. Each component passes them on
/// instead of computing them again.
#[derive(Clone, Debug)]
pub struct BlockSums {
    /// Checksums in little-endian, four bytes each.
    all: Arc<[u8]>,
    /// The range of `all` in use.
    part: Range<u32>,
}

impl BlockSums {
    /// Computes the checksums of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes.chunks(BLOCK_SIZE).flat_map(|block| crc32c(block).to_le_bytes()))
    }

    /// Checksums in the encoding of [`Self::as_bytes`].
    pub fn from_bytes(bytes: impl IntoIterator<Item = u8>) -> Self {
        let all: Arc<[u8]> = bytes.into_iter().collect();
        Self { part: 0..all.len() as u32, all }
    }

    /// Four bytes for each block, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.all[self.part.start as usize..self.part.end as usize]
    }

    /// The digest: the CRC-32C of the checksums.
    pub fn digest(&self) -> u32 {
        crc32c(self.as_bytes())
    }

    /// The checksums of a part of the `length` bytes, if it consists of whole blocks.
    pub(super) fn of_part(&self, length: u32, part: Range<u32>) -> Option<Self> {
        let is_whole =
            part.start.is_multiple_of(BLOCK) && (part.end.is_multiple_of(BLOCK) || part.end == length);
        if !is_whole || part.end > length {
            return None;
        }
        let place = |block: u32| self.part.start + block * SUM_SIZE as u32;
        Some(Self { all: self.all.clone(), part: place(part.start / BLOCK)..place(part.end.div_ceil(BLOCK)) })
    }
}

/// The known checksums of a frame's blocks, each valid until its block changes.
pub(super) struct KeptSums {
    sums: [u32; BLOCKS],
    /// One bit for each block with a known checksum.
    known: [u64; BLOCKS / 64],
    /// The number of bytes from the start of a block that its checksum covers.
    covered: [u16; BLOCKS],
}

impl KeptSums {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self { sums: [0; BLOCKS], known: [0; BLOCKS / 64], covered: [0; BLOCKS] })
    }

    fn knows(&self, block: u32) -> bool {
        self.known[block as usize / 64] & (1 << (block % 64)) != 0
    }

    #[cfg(test)]
    pub(super) fn covers(&self, block: u32, place: u32) -> bool {
        self.knows(block) && self.bytes_of(block).contains(&place)
    }

    fn forget(&mut self, block: u32) {
        self.known[block as usize / 64] &= !(1 << (block % 64));
    }

    /// The bytes of a block that its checksum covers.
    fn bytes_of(&self, block: u32) -> Range<u32> {
        let start = block * BLOCK;
        start..start + u32::from(self.covered[block as usize])
    }

    fn keep_one(&mut self, block: u32, end: u32, sum: u32) {
        let covered = (end - block * BLOCK) as u16;
        // Keep the checksum that covers more bytes.
        if self.knows(block) && covered < self.covered[block as usize] {
            return;
        }
        (self.sums[block as usize], self.covered[block as usize]) = (sum, covered);
        self.known[block as usize / 64] |= 1 << (block % 64);
    }

    /// Records the checksums of `range`, which starts at a block.
    pub(super) fn keep(&mut self, range: Range<u32>, sums: &BlockSums) {
        for (block, sum) in (range.start / BLOCK..).zip(sums.as_bytes().chunks_exact(SUM_SIZE)) {
            let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
            self.keep_one(block, range.end.min((block + 1) * BLOCK), sum);
        }
    }

    /// Records that the bytes from `at` are copies of `range` of a frame with the checksums `other`.
    pub(super) fn keep_copied(&mut self, other: &Self, range: &Range<u32>, at: u32) {
        if range.start % BLOCK != at % BLOCK {
            return;
        }
        for block in blocks(range).filter(|block| other.knows(*block)) {
            let bytes = other.bytes_of(block);
            if range.start <= bytes.start && bytes.end <= range.end {
                let to = bytes.start - range.start + at;
                self.keep_one(to / BLOCK, to + (bytes.end - bytes.start), other.sums[block as usize]);
            }
        }
    }

    /// Forgets the checksums of the blocks of `range`.
    pub(super) fn change(&mut self, range: &Range<u32>) {
        blocks(range).for_each(|block| self.forget(block));
    }

    /// The checksums of `range`, if all its blocks have one.
    pub(super) fn of(&self, range: &Range<u32>) -> Option<BlockSums> {
        let is_known = |block| {
            let bytes = self.bytes_of(block);
            self.knows(block) && bytes.end == range.end.min((block + 1) * BLOCK)
        };
        if !range.start.is_multiple_of(BLOCK) || !blocks(range).all(is_known) {
            return None;
        }
        let sums = blocks(range).flat_map(|block| self.sums[block as usize].to_le_bytes());
        Some(BlockSums::from_bytes(sums))
    }

    /// True if the bytes of a block of `range` do not match its checksum. Allocates nothing.
    pub(super) fn find_damage(&self, frame: &[u8], range: &Range<u32>) -> bool {
        blocks(range).filter(|block| self.knows(*block)).any(|block| {
            let bytes = self.bytes_of(block);
            crc32c(&frame[bytes.start as usize..bytes.end as usize]) != self.sums[block as usize]
        })
    }
}

fn blocks(range: &Range<u32>) -> Range<u32> {
    let end = if range.is_empty() { 0 } else { range.end.div_ceil(BLOCK) };
    range.start / BLOCK..end
}

/// True if the concatenation of `parts` consists of whole blocks with these checksums (four bytes each, little-endian). Allocates
/// nothing.
pub fn blocks_have_sums(parts: &[&[u8]], sums: &[u8]) -> bool {
    let mut sums = sums.chunks_exact(SUM_SIZE);
    let (mut sum, mut summed) = (Crc32c::new(), 0);
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(rest.len().min(BLOCK_SIZE - summed));
            sum.update(some);
            (summed, rest) = (summed + some.len(), after);
            if summed == BLOCK_SIZE {
                if sums.next() != Some(&sum.take().to_le_bytes()) {
                    return false;
                }
                summed = 0;
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
