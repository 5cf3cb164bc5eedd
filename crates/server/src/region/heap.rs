//! Allocation of blocks in the bytes of a region.
//!
//! The coordinator has the lists, so that an allocation takes one request, and touches no page. They last as long as processes are
//! attached.

use std::collections::BTreeMap;
use tameike_core::{Errno, Fault, Result};

/// Sizes of blocks are multiples of this number of bytes.
const GRAIN: u64 = 16;
/// Largest number of blocks of a region.
const BLOCKS_MAX: usize = 1 << 20;

/// The blocks of a region, by offset, with their sizes in bytes. Neighbouring free blocks are one.
#[derive(Debug)]
pub(super) struct Heap {
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
}

/// The error of a block that is not allocated.
pub(super) fn no_block(offset: u64) -> Fault {
    Fault::new(Errno::EINVAL, format!("no block of the region begins at byte {offset}"))
}

impl Heap {
    /// A heap of `size` free bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { free: BTreeMap::from([(0, size)]), used: BTreeMap::new() }
    }

    /// Allocates the first free block of `bytes` bytes at a multiple of `alignment`. Returns its offset.
    ///
    /// # Errors
    /// `EINVAL` if the size is 0 or the alignment no power of two; `ENOMEM` if there is no such block, or there are too many.
    pub(super) fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<u64> {
        if bytes == 0 || !alignment.is_power_of_two() {
            let why = format!("a block of {bytes} bytes at a multiple of {alignment} cannot be allocated");
            return Err(Fault::new(Errno::EINVAL, why));
        }
        let full = || {
            let why = format!("the region has no free block of {bytes} bytes at a multiple of {alignment}");
            Fault::new(Errno::ENOMEM, why)
        };
        let size = bytes.checked_next_multiple_of(GRAIN).ok_or_else(full)?;
        let place = |(&start, &length): (&u64, &u64)| {
            let offset = start.checked_next_multiple_of(alignment.max(GRAIN))?;
            (offset.checked_add(size)? <= start + length).then_some((start, length, offset))
        };
        let (start, length, offset) = self.free.iter().find_map(place).ok_or_else(full)?;
        if self.used.len() + self.free.len() >= BLOCKS_MAX {
            return Err(Fault::new(Errno::ENOMEM, format!("the region has {BLOCKS_MAX} blocks")));
        }
        self.free.remove(&start);
        let rest = [(start, offset - start), (offset + size, start + length - offset - size)];
        self.free.extend(rest.into_iter().filter(|&(_, length)| length > 0));
        self.used.insert(offset, size);
        Ok(offset)
    }

    /// Frees the block at an offset.
    ///
    /// # Errors
    /// `EINVAL` if no block begins there.
    pub(super) fn free(&mut self, offset: u64) -> Result<()> {
        let size = self.used.remove(&offset).ok_or_else(|| no_block(offset))?;
        let (mut start, mut size) = (offset, size);
        if let Some(next) = self.free.remove(&(start + size)) {
            size += next;
        }
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, size) = (before, length + size);
        }
        self.free.insert(start, size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
        result.expect_err("it fails").errno
    }

    #[test]
    fn blocks_are_aligned_and_reused() {
        let mut heap = Heap::new(8192);
        assert_eq!(heap.allocate(1, 1), Ok(0));
        assert_eq!(heap.allocate(100, 8), Ok(16));
        assert_eq!(heap.allocate(4096, 4096), Ok(4096));
        assert_eq!(errno(heap.allocate(4096, 1)), Errno::ENOMEM);
        assert_eq!(heap.free(16), Ok(()));
        assert_eq!(errno(heap.free(16)), Errno::EINVAL);
        assert_eq!(errno(heap.free(5)), Errno::EINVAL);
        assert_eq!(heap.allocate(4080, 1), Ok(16), "the free blocks around it are one");
        for (bytes, alignment) in [(0, 1), (1, 0), (1, 3)] {
            assert_eq!(errno(heap.allocate(bytes, alignment)), Errno::EINVAL);
        }
        for (bytes, alignment) in [(u64::MAX, 1), (1, 1 << 63), (u64::MAX - 15, 1 << 20)] {
            assert_eq!(errno(heap.allocate(bytes, alignment)), Errno::ENOMEM);
        }
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_space_comes_back(
            steps in prop::collection::vec((any::<bool>(), 1_u64..3000, 0_u32..13, any::<prop::sample::Index>()), 0..200)
        ) {
            const SIZE: u64 = 1 << 16;
            let mut heap = Heap::new(SIZE);
            let mut blocks = Vec::<(u64, u64)>::new();
            for (frees, bytes, alignment, which) in steps {
                if frees && !blocks.is_empty() {
                    let (offset, _) = blocks.swap_remove(which.index(blocks.len()));
                    prop_assert_eq!(heap.free(offset), Ok(()));
                } else if let Ok(offset) = heap.allocate(bytes, 1 << alignment) {
                    prop_assert!(offset.is_multiple_of(1 << alignment) && offset + bytes <= SIZE);
                    let is_apart = |&(start, length): &(u64, u64)| offset + bytes <= start || start + length <= offset;
                    prop_assert!(blocks.iter().all(is_apart));
                    blocks.push((offset, bytes));
                }
            }
            for (offset, _) in blocks {
                prop_assert_eq!(heap.free(offset), Ok(()));
            }
            prop_assert_eq!(heap.allocate(SIZE, 1), Ok(0));
        }
    }
}
