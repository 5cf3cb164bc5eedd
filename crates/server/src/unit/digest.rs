//! BLAKE3 of files whose units are hashed on different nodes.
//!
//! A unit is a whole number of BLAKE3 chunks and a power of two of them, so each full unit is a subtree of its
//! file's hash tree: the chaining values of the units, merged pairwise as BLAKE3 splits its input, give the
//! hash of the file as `b3sum` prints it (section 2.1 of the BLAKE3 paper).

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

/// Whether `digest` is one of a file of `size` bytes.
pub(crate) fn fits(digest: &UnitDigest, size: u64) -> bool {
    digest.length == unit_length(size, digest.index) && digest.root == (size <= UNIT_SIZE as u64)
}

/// A size of the file for which `digest` was made.
pub(crate) fn size_when_made(digest: &UnitDigest) -> u64 {
    let end = digest.index * UNIT_SIZE as u64 + u64::from(digest.length);
    if digest.root { end } else { end.max(UNIT_SIZE as u64 + 1) }
}

/// The hash of a file of `size` bytes from the digests of all its units, in order.
pub(crate) fn of_file(units: &[UnitDigest], size: u64) -> Option<[u8; 32]> {
    let complete = units.len() as u64 == unit_count(size)
        && (0..).zip(units).all(|(index, unit)| unit.index == index && fits(unit, size));
    if !complete {
        return None;
    }
    Some(match units {
        [] => *blake3::hash(b"").as_bytes(),
        [only] => only.value,
        many => {
            let (left, right) = many.split_at(left_units(many.len()));
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    })
}

fn subtree(units: &[UnitDigest]) -> ChainingValue {
    match units {
        [only] => only.value,
        many => {
            let (left, right) = many.split_at(left_units(many.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// The left part of `count` (at least 2) units: the largest power of two below it.
fn left_units(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// A hash over some units of a file, for files that were only partly written.
pub(crate) fn of_some_units(units: &[UnitDigest]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for unit in units {
        hasher.update(&unit.index.to_le_bytes()).update(&unit.value);
    }
    *hasher.finalize().as_bytes()
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
            let merged = of_file(&units, size as u64).expect("all units are there");
            assert_eq!(merged, *blake3::hash(file).as_bytes(), "{size} bytes");
            assert_eq!(of_file(&units, size as u64 + 1), None, "a digest of another size is refused");
        }
    }
}
