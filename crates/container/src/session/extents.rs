//! Extents of a file that is changed piece by piece.

use crate::Extent;

/// Overwrites a range with an extent. The list stays ascending and without overlaps.
pub fn lay(extents: &mut Vec<Extent>, new: Extent) {
    if extents.last().is_none_or(|last| last.end() <= new.start) {
        extents.push(new);
        return;
    }
    let (from, to) = (new.start, new.end());
    let first = extents.partition_point(|extent| extent.end() <= from);
    let after = extents.partition_point(|extent| extent.start < to);
    let before = extents.get(first).filter(|extent| extent.start < from).map(|extent| trim_end(extent, from));
    let behind = after.checked_sub(1).and_then(|last| extents.get(last)).filter(|extent| extent.end() > to);
    let behind = behind.map(|extent| trim_start(extent, to));
    extents.splice(first..after.max(first), before.into_iter().chain([new]).chain(behind));
}

/// Removes everything at or beyond `size`.
pub fn truncate(extents: &mut Vec<Extent>, size: u64) {
    extents.truncate(extents.partition_point(|extent| extent.start < size));
    if let Some(last) = extents.last_mut() {
        *last = trim_end(last, size.min(last.end()));
    }
}

fn trim_end(extent: &Extent, at: u64) -> Extent {
    // Less than the extent's length, so it fits.
    Extent { length: (at - extent.start) as u32, ..*extent }
}

fn trim_start(extent: &Extent, at: u64) -> Extent {
    let removed = (at - extent.start) as u32;
    Extent { start: at, length: extent.length - removed, skip: extent.skip + removed, ..*extent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LaneId;
    use proptest::prelude::*;

    const SIZE: usize = 64;

    proptest! {
        #[test]
        fn later_extents_cover_earlier_ones(pieces in proptest::collection::vec((0..48_u64, 1..16_u32, any::<bool>()), 1..40)) {
            let (mut extents, mut model) = (Vec::new(), [None; SIZE]);
            for (number, (start, length, truncates)) in (0_u64..).zip(pieces) {
                if truncates {
                    truncate(&mut extents, start);
                    model[start as usize..].fill(None);
                    continue;
                }
                lay(&mut extents, Extent { start, length, lane: LaneId { subfile: 0, lane: 0 }, address: number, skip: 0 });
                for at in 0..length {
                    model[start as usize + at as usize] = Some((number, at));
                }
            }
            let mut found = [None; SIZE];
            let mut behind = 0;
            for extent in &extents {
                prop_assert!(extent.length > 0 && extent.start >= behind);
                behind = extent.end();
                for at in 0..extent.length {
                    found[extent.start as usize + at as usize] = Some((extent.address, extent.skip + at));
                }
            }
            prop_assert_eq!(found, model);
        }
    }
}
