//! File content that follows from (seed, file, offset, version), cheap to generate and to check.
//!
//! Every file repeats one block of random words. Each page combines it with a key, so that a page of another file, offset or version never
//! passes for this one. Generating or checking a gigabyte takes a fraction of the time of moving it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes under one key.
const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;
const BLOCK_PAGES: usize = 256;

/// The file, and the version of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Unique among the files of a run.
    pub file: u64,
    /// Changes when the file is overwritten.
    pub version: u64,
}

/// The bytes of all files of a run.
#[derive(Debug)]
pub struct Pattern {
    seed: u64,
    block: Vec<[u64; PAGE_BYTES / WORD_BYTES]>,
}

impl Pattern {
    /// Makes the pattern of a seed; it is the same in all processes.
    pub fn new(seed: u64) -> Self {
        let word = |index: usize| xxh3_64_with_seed(&index.to_le_bytes(), seed);
        let page = |page: usize| std::array::from_fn(|at| word(page * PAGE_BYTES + at));
        Self { seed, block: (0..BLOCK_PAGES).map(page).collect() }
    }

    /// Fills `bytes` with `content` from `offset`, which must be a multiple of 8.
    pub fn fill(&self, content: Content, offset: u64, bytes: &mut [u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (page, within) = (at / PAGE_BYTES as u64, at as usize % PAGE_BYTES);
            let size = rest.len().min(PAGE_BYTES - within);
            let (piece, after) = rest.split_at_mut(size);
            self.fill_in_page(content, page, within / WORD_BYTES, piece);
            (at, rest) = (at + size as u64, after);
        }
    }

    /// Fills `bytes` with `page` of `content` from its word `first`.
    fn fill_in_page(&self, content: Content, page: u64, first: usize, bytes: &mut [u8]) {
        let (words, key) = (&self.words(page)[first..], self.key(content, page));
        let (whole, rest) = bytes.as_chunks_mut::<WORD_BYTES>();
        for (bytes, word) in whole.iter_mut().zip(words) {
            *bytes = (word ^ key).to_le_bytes();
        }
        let last = words.get(whole.len()).map_or([0; WORD_BYTES], |word| (word ^ key).to_le_bytes());
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Returns the offset of the first byte that differs from `content`, or `None`.
    pub fn first_wrong(&self, content: Content, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut expected = [0; PAGE_BYTES];
        for (index, chunk) in bytes.chunks(PAGE_BYTES).enumerate() {
            let start = offset + (index * PAGE_BYTES) as u64;
            let expected = &mut expected[..chunk.len()];
            self.fill(content, start, expected);
            if chunk != expected {
                let at = chunk.iter().zip(&*expected).position(|(found, right)| found != right)?;
                return Some(start + at as u64);
            }
        }
        None
    }

    fn words(&self, page: u64) -> &[u64; PAGE_BYTES / WORD_BYTES] {
        &self.block[page as usize % BLOCK_PAGES]
    }

    fn key(&self, content: Content, page: u64) -> u64 {
        let mut name = [0; 3 * WORD_BYTES];
        name[..8].copy_from_slice(&content.file.to_le_bytes());
        name[8..16].copy_from_slice(&content.version.to_le_bytes());
        name[16..].copy_from_slice(&page.to_le_bytes());
        xxh3_64_with_seed(&name, self.seed)
    }
}

/// The blocks that random access visits, the same for writer and reader.
pub fn random_blocks(seed: u64, file: u64, blocks: u64, count: u64) -> impl Iterator<Item = u64> {
    let draw = move |index: u64| xxh3_64_with_seed(&index.to_le_bytes(), seed ^ file.rotate_left(32));
    // The high part of a product spreads evenly over the range without the bias of a remainder.
    (0..count).map(move |index| ((u128::from(draw(index)) * u128::from(blocks)) >> 64) as u64)
}

/// The numbers below `count` in a random order that follows from `seed`.
pub fn shuffled(seed: u64, count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    order.sort_by_cached_key(|number| xxh3_64_with_seed(&number.to_le_bytes(), seed));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content = Content { file: 7, version: 0 };

    fn filled(pattern: &Pattern, content: Content, offset: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        pattern.fill(content, offset, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_filled_is_right() {
        let pattern = Pattern::new(1);
        for size in [0, 1, 7, 8, 3901, 4096, 4097, 3 << 20] {
            let bytes = filled(&pattern, CONTENT, 8192, size);
            assert_eq!(pattern.first_wrong(CONTENT, 8192, &bytes), None, "{size}");
        }
    }

    #[test]
    fn records_that_straddle_pages_are_parts_of_the_whole() {
        let pattern = Pattern::new(1);
        let whole = filled(&pattern, CONTENT, 0, 10 * 47_008);
        for (offset, record) in (0..).step_by(47_008).zip(whole.chunks(47_008)) {
            assert!(record == filled(&pattern, CONTENT, offset, record.len()), "the record at {offset}");
            assert_eq!(pattern.first_wrong(CONTENT, offset, record), None);
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let pattern = Pattern::new(1);
        let mut bytes = filled(&pattern, CONTENT, 0, 10_000);
        for at in (0..bytes.len()).step_by(37) {
            bytes[at] ^= 1;
            assert_eq!(pattern.first_wrong(CONTENT, 0, &bytes), Some(at as u64));
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn bytes_of_elsewhere_are_found() {
        let pattern = Pattern::new(1);
        let bytes = filled(&pattern, CONTENT, 0, 4096);
        let period = (BLOCK_PAGES * PAGE_BYTES) as u64;
        for (seed, content, offset) in [
            (1, CONTENT, 4096),
            (1, CONTENT, period),
            (1, Content { file: 8, ..CONTENT }, 0),
            (1, Content { version: 1, ..CONTENT }, 0),
            (2, CONTENT, 0),
        ] {
            assert!(
                Pattern::new(seed).first_wrong(content, offset, &bytes).is_some(),
                "{content:?} at {offset}"
            );
        }
    }

    #[test]
    fn random_blocks_repeat_and_stay_inside() {
        let blocks: Vec<u64> = random_blocks(3, 4, 100, 1000).collect();
        assert!(blocks.iter().eq(&random_blocks(3, 4, 100, 1000).collect::<Vec<_>>()));
        assert!(blocks.iter().all(|&block| block < 100));
        let distinct: std::collections::BTreeSet<_> = blocks.iter().collect();
        assert!(distinct.len() > 90, "{} of 100 blocks visited", distinct.len());
        let mut order = shuffled(3, 100);
        assert!(order != shuffled(4, 100) && !order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..100));
    }
}
