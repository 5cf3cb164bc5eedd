//! The changed bytes of a page, found and stored word-wise.

use super::{PAGE_SIZE, Page};
use std::ops::Range;

/// Size of a bitmap of a page's bytes, in bytes.
pub(super) const MASK_SIZE: usize = PAGE_SIZE / 8;
/// Its number of words.
pub(super) const MASK_WORDS: usize = MASK_SIZE / 8;

const LOW: u64 = 0x0101_0101_0101_0101;
const SEVENS: u64 = 0x7F7F_7F7F_7F7F_7F7F;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Bit k in byte k.
const DIAGONAL: u64 = 0x8040_2010_0804_0201;
/// Moves bit 8 k to bit 56 + k, without carries.
const GATHER: u64 = 0x0102_0408_1020_4080;

/// The set of bytes in which a page has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Bit i of word k stands for byte 64 k + i.
    words: [u64; MASK_WORDS],
    count: u16,
}

/// Bit k is set if byte k of `word` is not zero.
fn nonzero_bytes(word: u64) -> u64 {
    let high = (((word & SEVENS) + SEVENS) | word) & HIGH;
    (high >> 7).wrapping_mul(GATHER) >> 56
}

/// Byte k is 0xFF if bit k is set, else 0.
pub(super) fn expand(bits: u8) -> u64 {
    let diagonal = (u64::from(bits) * LOW) & DIAGONAL;
    (((diagonal + SEVENS) & HIGH) >> 7) * 0xFF
}

impl Difference {
    /// Compares two states of a page.
    pub fn between(before: &Page, after: &Page) -> Self {
        let mut words = [0; MASK_WORDS];
        // Most pages are equal or almost equal: comparisons of many bytes are the fastest.
        if before != after {
            let spans = before.as_chunks::<64>().0.iter().zip(after.as_chunks::<64>().0);
            for ((before, after), word) in spans.zip(&mut words).filter(|((a, b), _)| a != b) {
                let pairs = before.as_chunks::<8>().0.iter().zip(after.as_chunks::<8>().0);
                for (place, (a, b)) in pairs.enumerate() {
                    let changed = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
                    *word |= nonzero_bytes(changed) << (8 * place);
                }
            }
        }
        let count = words.iter().map(|word| word.count_ones() as u16).sum();
        Self { words, count }
    }

    /// Returns true if no byte has changed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of changed bytes.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The runs of changed bytes in ascending order, each as long as possible.
    pub fn runs(&self) -> Runs<'_> {
        Runs { words: &self.words, next: 0 }
    }

    pub(super) fn run_count(&self) -> usize {
        let (mut count, mut before) = (0, 0);
        for &word in &self.words {
            count += (word & !(word << 1 | before)).count_ones() as usize;
            before = word >> 63;
        }
        count
    }

    pub(super) fn words(&self) -> &[u64; MASK_WORDS] {
        &self.words
    }
}

/// The runs of a [`Difference`].
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    words: &'a [u64; MASK_WORDS],
    next: usize,
}

impl Runs<'_> {
    /// The first byte from `self.next` on that is changed (`flip == 0`) or unchanged (`flip == u64::MAX`).
    fn search(&self, flip: u64) -> usize {
        let mut skipped = self.next % 64;
        for place in self.next / 64..MASK_WORDS {
            let word = (self.words[place] ^ flip) >> skipped << skipped;
            if word != 0 {
                return 64 * place + word.trailing_zeros() as usize;
            }
            skipped = 0;
        }
        PAGE_SIZE
    }
}

impl Iterator for Runs<'_> {
    type Item = Range<u16>;

    fn next(&mut self) -> Option<Range<u16>> {
        let start = self.search(0);
        if start == PAGE_SIZE {
            return None;
        }
        self.next = start;
        self.next = self.search(u64::MAX);
        Some(start as u16..self.next as u16)
    }
}
