//! Detection of repeated reads of a unit: a program that reads a unit in many steps uses it once.

use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;

/// Granularity at which a unit's steps are recorded.
const PART_SIZE: u32 = UNIT_SIZE as u32 / u16::BITS;

/// Steps of programs through a unit. They may arrive out of order: a kernel has several readahead requests in flight.
#[derive(Default)]
pub(super) struct Pass {
    /// Highest end of a step.
    end: u32,
    /// Bitmap of the parts that steps touched.
    parts: u16,
}

impl Pass {
    /// Records a read or write. Returns true if it starts another pass over the unit; the first pass does not count.
    pub(super) fn step(&mut self, range: &Range<u32>) -> bool {
        let parts = parts_of(range);
        let is_reuse = range.start < self.end && self.parts & part_of(range.start) != 0;
        if is_reuse {
            *self = Self::default();
        }
        *self = Self { end: self.end.max(range.end), parts: self.parts | parts };
        is_reuse
    }

    pub(super) fn has_begun(&self) -> bool {
        self.end > 0
    }
}

fn part_of(place: u32) -> u16 {
    1 << (place / PART_SIZE).min(u16::BITS - 1)
}

fn parts_of(range: &Range<u32>) -> u16 {
    let (first, last) = (part_of(range.start), part_of(range.end.saturating_sub(1).max(range.start)));
    // All bits from the first to the last.
    (last | (last - 1)) & !(first - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = UNIT_SIZE as u32;

    fn passes(steps: &[Range<u32>]) -> usize {
        let mut pass = Pass::default();
        steps.iter().filter(|step| pass.step(step)).count()
    }

    fn steps(size: u32) -> Vec<Range<u32>> {
        (0..SIZE / size).map(|step| step * size..(step + 1) * size).collect()
    }

    #[test]
    fn a_unit_is_gone_through_as_often_as_from_its_start_to_its_end() {
        for size in [4096, 47_008, 131_072, SIZE] {
            let once = steps(size);
            assert_eq!(passes(&once), 0, "in steps of {size}");
            assert_eq!(passes(&[&once[..], &once, &once].concat()), 2, "three times in steps of {size}");
        }
    }

    #[test]
    fn steps_that_overtake_each_other_are_of_one_pass() {
        let mut once = steps(131_072);
        once.swap(0, 1);
        once.swap(4, 6);
        assert_eq!(passes(&once), 0);
        assert_eq!(passes(&[&once[..], &once].concat()), 1);
    }

    #[test]
    fn the_same_bytes_are_read_again() {
        assert_eq!(passes(&[0..5, 0..5, 0..5]), 2);
        assert_eq!(passes(&[SIZE - 1..SIZE, 0..1, SIZE - 1..SIZE]), 1);
    }
}
