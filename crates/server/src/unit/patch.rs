//! Patches of units of regions.

use super::{UnitService, check_index};
use std::ops::Range;
use tameike_core::limits::BLOCKS_PER_UNIT;
use tameike_core::patch::patches;
use tameike_core::{InodeId, Layout, Result, UnitId};
use tameike_io::Payload;

/// Places of the records of each unit in a patch, with the index of the unit, ascending.
fn by_unit(patch: &[u8]) -> Result<Vec<(u64, Range<u32>)>> {
    let mut units: Vec<(u64, Range<u32>)> = Vec::new();
    let mut at = 0;
    for record in patches(patch) {
        let record = record?;
        let index = u64::from(record.page()) / BLOCKS_PER_UNIT as u64;
        check_index(index)?;
        let end = at + record.size() as u32;
        match units.last_mut() {
            Some((last, place)) if *last == index => place.end = end,
            _ => units.push((index, at..end)),
        }
        at = end;
    }
    Ok(units)
}

impl UnitService {
    /// Applies a patch with pages of this node's units. Validates all of it before anything changes.
    pub(super) async fn patch(&self, inode: InodeId, layout: Layout, patch: Payload) -> Result<()> {
        let units = by_unit(&patch)?;
        let _allocation = self.allocations.begin();
        let at_home = |(index, place)| {
            let unit = UnitId { inode, index };
            (self.parts.cluster.unit_home(layout, unit), unit, place)
        };
        self.parts.copies.patch(units.into_iter().map(at_home).collect(), patch).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::Errno;

    /// A record that changes one byte.
    fn record(page: u32) -> Vec<u8> {
        [&page.to_le_bytes()[..], &[1, 0, 1, 0, 9, 0, 1, 0, 7]].concat()
    }

    #[test]
    fn records_are_grouped_by_unit() {
        let patch = [255, 256, 300, 511, 5 << 8].map(record).concat();
        let size = record(0).len() as u32;
        let expected = [(0, 0..size), (1, size..4 * size), (5, 4 * size..5 * size)];
        assert_eq!(by_unit(&patch), Ok(expected.to_vec()));
        assert_eq!(by_unit(&[]), Ok(Vec::new()));
        assert_eq!(by_unit(&patch[..patch.len() - 1]).unwrap_err().errno, Errno::EINVAL);
    }
}
