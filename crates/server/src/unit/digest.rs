//! BLAKE3 hashes of files whose units are hashed on different nodes.
//!
//! A unit is a power of two of BLAKE3 chunks, so each full unit is a subtree of the file's hash tree. The chaining values of the units,
//! merged pairwise as BLAKE3 splits its input, give the hash of the file as `b3sum` prints it (section 2.1 of the BLAKE3 paper).

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::UnitDigest;

const _: () = assert!(UNIT_SIZE.is_power_of_two() && UNIT_SIZE >= blake3::CHUNK_LEN);

/// Number of units of a file of `size` bytes.
pub(crate) fn unit_count(size: u64) -> u64 {
    size.div_ceil(UNIT_SIZE as u64)
}

/// Bytes of unit `index` that belong to a file of `size` bytes.
pub(crate) fn unit_length(size: u64, index: u64) -> u32 {
    size.saturating_sub(index * UNIT_SIZE as u64).min(UNIT_SIZE as u64) as u32
}

/// The digest of unit `index`, which holds `content`, of a file of `size` bytes.
pub(crate) fn of_unit(index: u64, content: &[u8], size: u64) -> UnitDigest {
    let root = size <= UNIT_SIZE as u64;
    let value = if root {
        *blake3::hash(content).as_bytes()
    } else {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index * UNIT_SIZE as u64).update(content);
        hasher.finalize_non_root()
    };
    UnitDigest { index, length: content.len() as u32, root, value }
}

/// Whether `digest` was made for a file of `size` bytes.
pub(crate) fn fits(digest: &UnitDigest, size: u64) -> bool {
    digest.length == unit_length(size, digest.index) && digest.root == (size <= UNIT_SIZE as u64)
}

/// A size of the file for which `digest` was made.
pub(crate) fn size_when_made(digest: &UnitDigest) -> u64 {
    let end = digest.index * UNIT_SIZE as u64 + u64::from(digest.length);
    if digest.root { end } else { end.max(UNIT_SIZE as u64 + 1) }
}

/// The checksum of a file from the digests of its units, in order. It keeps one chaining value per level of the hash tree.
pub(crate) struct Sum {
    size: u64,
    /// Units without a gap from the first one.
    row: u64,
    /// Chaining values of the subtrees on the left of `last`, the largest first.
    left: Vec<ChainingValue>,
    /// The last of these: merged once it is known whether it is the last of the file.
    last: Option<ChainingValue>,
    /// Hashes index and digest of each unit.
    some: blake3::Hasher,
}

impl Sum {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, row: 0, left: Vec::new(), last: None, some: blake3::Hasher::new() }
    }

    /// Adds the digest of a unit behind all that were added.
    pub(crate) fn add(&mut self, unit: &UnitDigest) {
        self.some.update(&unit.index.to_le_bytes()).update(&unit.value);
        if unit.index != self.row || !fits(unit, self.size) {
            return;
        }
        if let Some(mut subtree) = self.last.replace(unit.value) {
            // Subtrees of the same size become one, as carries do in addition.
            for _ in 0..self.row.trailing_zeros() {
                let Some(left) = self.left.pop() else { break };
                subtree = merge_subtrees_non_root(&left, &subtree, Mode::Hash);
            }
            self.left.push(subtree);
        }
        self.row += 1;
    }

    /// The hash of the file as `b3sum` prints it, if all units were added.
    pub(crate) fn whole(&self) -> Option<[u8; 32]> {
        if self.row != unit_count(self.size) {
            return None;
        }
        let Some(mut right) = self.last else { return Some(*blake3::hash(b"").as_bytes()) };
        let Some((root, left)) = self.left.split_first() else { return Some(right) };
        for left in left.iter().rev() {
            right = merge_subtrees_non_root(left, &right, Mode::Hash);
        }
        Some(*merge_subtrees_root(root, &right, Mode::Hash).as_bytes())
    }

    /// A hash over the added units, for a file with holes.
    pub(crate) fn some(&self) -> [u8; 32] {
        *self.some.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_merge_into_the_hash_of_the_file() {
        let unit = UNIT_SIZE;
        let sizes = [
            0,
            1,
            1023,
            1024,
            1025,
            unit - 1,
            unit,
            unit + 1,
            2 * unit,
            2 * unit + 1,
            3 * unit,
            7 * unit / 2,
            4 * unit,
            5 * unit + 4097,
            8 * unit + 1,
            13 * unit + 1024,
        ];
        let content: Vec<u8> =
            (0..14 * unit as u64).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        for size in sizes {
            let file = &content[..size];
            let units: Vec<_> =
                (0..).zip(file.chunks(unit)).map(|(index, part)| of_unit(index, part, size as u64)).collect();
            let sum = |units: &[UnitDigest], size: usize| {
                let mut sum = Sum::new(size as u64);
                units.iter().for_each(|unit| sum.add(unit));
                assert!(sum.left.len() < 8, "memory by the levels of the tree");
                sum.whole()
            };
            assert_eq!(sum(&units, size), Some(*blake3::hash(file).as_bytes()), "{size} bytes");
            assert_eq!(sum(&units, size + 1), None, "a digest of another size is refused");
            if let Some((_, rest)) = units.split_first() {
                assert_eq!(sum(rest, size), None, "a unit is missing");
            }
        }
    }
}
