//! Checksums that stay with a payload on its way, so that its bytes are gone through once at each end, and with the bytes of a frame
//! for as long as they lie there.

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
/// The fabric proves a payload with them, and the store keeps those of whole blocks in its index: the same numbers, which
/// whoever has seen the bytes hands to the next.
#[derive(Clone, Debug)]
pub struct BlockSums {
    /// Little-endian.
    all: Arc<[u8]>,
    /// The bytes of `all` that are meant.
    part: Range<u32>,
}

impl BlockSums {
    /// Those of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes.chunks(BLOCK_SIZE).flat_map(|block| crc32c(block).to_le_bytes()))
    }

    /// Those that [`Self::as_bytes`] told.
    pub fn from_bytes(bytes: impl IntoIterator<Item = u8>) -> Self {
        let all: Arc<[u8]> = bytes.into_iter().collect();
        Self { part: 0..all.len() as u32, all }
    }

    /// Four bytes for each block, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.all[self.part.start as usize..self.part.end as usize]
    }

    /// One checksum for all of it: the CRC-32C of the checksums.
    pub fn digest(&self) -> u32 {
        crc32c(self.as_bytes())
    }

    /// Those of a part of the `length` bytes that they are of, if it consists of whole blocks of these.
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

/// The checksums of the blocks of one frame, each until one of its bytes is changed.
pub(super) struct KeptSums {
    sums: [u32; BLOCKS],
    /// A bit for each block whose checksum is known.
    known: [u64; BLOCKS / 64],
    /// How many bytes of each block its checksum is of, from the first on.
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

    /// The bytes of a block that its checksum is of.
    fn bytes_of(&self, block: u32) -> Range<u32> {
        let start = block * BLOCK;
        start..start + u32::from(self.covered[block as usize])
    }

    fn keep_one(&mut self, block: u32, end: u32, sum: u32) {
        let covered = (end - block * BLOCK) as u16;
        // A checksum of more bytes is of more use.
        if self.knows(block) && covered < self.covered[block as usize] {
            return;
        }
        (self.sums[block as usize], self.covered[block as usize]) = (sum, covered);
        self.known[block as usize / 64] |= 1 << (block % 64);
    }

    /// The bytes `range`, which begin with a block, have these checksums.
    pub(super) fn keep(&mut self, range: Range<u32>, sums: &BlockSums) {
        for (block, sum) in (range.start / BLOCK..).zip(sums.as_bytes().chunks_exact(SUM_SIZE)) {
            let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
            self.keep_one(block, range.end.min((block + 1) * BLOCK), sum);
        }
    }

    /// The bytes from `at` on are copies of `range` of a frame with the checksums `other`.
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

    /// Bytes are about to be changed.
    pub(super) fn change(&mut self, range: &Range<u32>) {
        blocks(range).for_each(|block| self.forget(block));
    }

    /// Those of `range`, where it consists of blocks that all have theirs.
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

    /// Whether bytes of the blocks around `range` are not what their checksums say. Nothing is allocated.
    pub(super) fn find_damage(&self, frame: &[u8], range: &Range<u32>) -> bool {
        blocks(range).filter(|block| self.knows(*block)).any(|block| {
            let bytes = self.bytes_of(block);
            crc32c(&frame[bytes.start as usize..bytes.end as usize]) != self.sums[block as usize]
        })
    }
}

/// The blocks with bytes of `range`.
fn blocks(range: &Range<u32>) -> Range<u32> {
    let end = if range.is_empty() { 0 } else { range.end.div_ceil(BLOCK) };
    range.start / BLOCK..end
}

/// Whether the blocks of which `parts` are the bytes, one after the other, have these checksums (four bytes for each,
/// little-endian). They are whole blocks; nothing is allocated.
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
