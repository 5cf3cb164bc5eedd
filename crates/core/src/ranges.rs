//! Sets of byte ranges, as of the valid or dirty bytes of a frame.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Sorted, disjoint, non-adjacent, non-empty ranges of bytes within a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSet(Vec<Range<u32>>);

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.iter().cloned()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// End of the last range; 0 for the empty set.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |range| range.end)
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|old| old.end < range.start);
        let last = self.0.partition_point(|old| old.start <= range.end);
        let joined = match self.0.get(first..last) {
            Some([head, .., tail]) => head.start.min(range.start)..tail.end.max(range.end),
            Some([only]) => only.start.min(range.start)..only.end.max(range.end),
            _ => range,
        };
        self.0.splice(first..last, [joined]);
    }

    /// Adds the ranges of another set.
    pub fn insert_all(&mut self, other: &Self) {
        let mut sorted = std::mem::take(&mut self.0);
        sorted.extend_from_slice(&other.0);
        // Two sorted runs: merged in linear time.
        sorted.sort_by_key(|range| range.start);
        for range in sorted {
            match self.0.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => self.0.push(range),
            }
        }
    }

    /// Joins neighbouring ranges where `joins` returns true for the size of the gap between them.
    pub fn join(&mut self, mut joins: impl FnMut(u32) -> bool) {
        self.0.dedup_by(|next, last| {
            let joined = joins(next.start - last.end);
            last.end = if joined { next.end } else { last.end };
            joined
        });
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        for old in self.0.drain(..) {
            kept.push(old.start..old.end.min(range.start));
            kept.push(old.start.max(range.end)..old.end);
        }
        kept.retain(|part| part.start < part.end);
        self.0 = kept;
    }

    /// Returns true if all bytes of `range` are in the set.
    pub fn contains(&self, range: &Range<u32>) -> bool {
        range.is_empty() || self.around(range).is_some()
    }

    /// The range of the set that contains all bytes of `range`.
    pub fn around(&self, range: &Range<u32>) -> Option<Range<u32>> {
        self.0.iter().find(|old| old.start <= range.start && range.end <= old.end).cloned()
    }

    /// The parts of `range` that are not in the set, ascending.
    pub fn gaps(&self, range: Range<u32>) -> Vec<Range<u32>> {
        let mut missing = Self(if range.is_empty() { Vec::new() } else { vec![range] });
        for old in &self.0 {
            missing.remove(old.clone());
        }
        missing.0
    }

    /// The bytes that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = self.clone();
        other.gaps(0..self.end()).into_iter().for_each(|gap| both.remove(gap));
        both
    }

    /// The bytes that are not in the other set.
    pub fn without(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        other.iter().for_each(|range| rest.remove(range));
        rest
    }

    /// Returns true if the ranges satisfy the invariant of the type, which a decoded set may violate.
    pub fn is_in_order(&self) -> bool {
        self.0.iter().all(|range| range.start < range.end)
            && self.0.windows(2).all(|pair| pair[0].end < pair[1].start)
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl From<Range<u32>> for RangeSet {
    fn from(range: Range<u32>) -> Self {
        Self::from_iter([range])
    }
}

impl FromIterator<Range<u32>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u32>>>(ranges: I) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u32..64, 0u32..20), 0..40)) {
            let mut ranges = RangeSet::new();
            let mut bytes = [false; 96];
            for (add, start, length) in steps {
                let range = start..start + length;
                if add { ranges.insert(range.clone()) } else { ranges.remove(range.clone()) }
                range.for_each(|byte| bytes[byte as usize] = add);
                let held: Vec<u32> = ranges.iter().flatten().collect();
                let expected: Vec<u32> = (0..96).filter(|&byte| bytes[byte as usize]).collect();
                prop_assert_eq!(&held, &expected);
                prop_assert!(ranges.is_in_order());
                let missing: Vec<u32> = ranges.gaps(0..96).into_iter().flatten().collect();
                prop_assert_eq!(missing.len() + held.len(), 96);
                prop_assert_eq!(ranges.len() as usize, held.len());
                for start in 0..96 {
                    let around = ranges.around(&(start..start + 1));
                    prop_assert_eq!(around.is_some(), bytes[start as usize]);
                    prop_assert!(around.is_none_or(|range| ranges.iter().any(|part| part == range)));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn sets_are_united_and_gaps_joined(
            sets in prop::array::uniform2(prop::collection::vec((0u32..90, 0u32..6), 0..20)),
            largest in 0u32..8,
        ) {
            let [mut united, other] = sets.map(|ranges| {
                ranges.into_iter().map(|(start, length)| start..start + length).collect::<RangeSet>()
            });
            let expected: RangeSet = united.iter().chain(other.iter()).collect();
            let (both, rest) = (united.intersection(&other), united.without(&other));
            for byte in 0..100 {
                let is_in = |set: &RangeSet| set.contains(&(byte..byte + 1));
                prop_assert_eq!(is_in(&both), is_in(&united) && is_in(&other));
                prop_assert_eq!(is_in(&rest), is_in(&united) && !is_in(&other));
            }
            prop_assert!(both.is_in_order() && rest.is_in_order());
            united.insert_all(&other);
            prop_assert_eq!(&united, &expected);
            let mut joined = united.clone();
            joined.join(|gap| gap <= largest);
            let gaps = united.gaps(united.iter().next().map_or(0, |first| first.start)..united.end());
            let filled = gaps.into_iter().filter(|gap| gap.len() <= largest as usize);
            let expected: RangeSet = united.iter().chain(filled).collect();
            prop_assert_eq!(joined, expected);
        }
    }

    #[test]
    fn invalid_range_sets_are_detected() {
        for wrong in [
            vec![4..8, 0..2],
            vec![0..4, 2..8],
            vec![0..4, 4..8],
            vec![3..3, 5..6],
            vec![Range { start: 5, end: 2 }],
        ] {
            assert!(!RangeSet(wrong.clone()).is_in_order(), "{wrong:?}");
        }
        assert!(RangeSet::new().is_in_order() && RangeSet(vec![0..4, 5..8]).is_in_order());
    }
}
