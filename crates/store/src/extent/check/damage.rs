//! Damage of the blocks of one unit: report and repair.

use super::super::record::{BLOCK, UnitRecord, bytes_of, within};
use crate::check::{Aside, Findings, Loss, Part};
use std::collections::BTreeMap;
use std::ops::Range;
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, Result, UnitId};

/// Number of ranges that a message lists.
const RANGES_MAX: usize = 8;

/// Damaged blocks of a unit, each with its block of the device.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Blocks whose checksums do not match.
    pub(super) bad: BTreeMap<u32, u64>,
    /// Valid blocks that another unit names as well.
    pub(super) shared: BTreeMap<u32, u64>,
}

/// Formats ranges with their last numbers, for messages.
fn format_ranges(ranges: &[Range<u64>]) -> String {
    let shown = ranges.iter().take(RANGES_MAX).map(|range| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match ranges.len().saturating_sub(RANGES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more ranges"),
    }
}

fn merge_numbers(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

impl Damage {
    pub(super) fn is_none(&self) -> bool {
        self.bad.is_empty() && self.shared.is_empty()
    }

    fn damaged(&self, set: &RangeSet) -> RangeSet {
        let bytes: RangeSet = self.bad.keys().map(|block| bytes_of(&(*block..block + 1))).collect();
        bytes.iter().flat_map(|range| within(set, &range).iter().collect::<Vec<_>>()).collect()
    }

    /// Reports the damage, before the record changes.
    pub(super) fn report(
        &self,
        unit: UnitId,
        record: &UnitRecord,
        name: &str,
        file: Option<String>,
        findings: &mut Findings,
    ) {
        if !self.shared.is_empty() {
            let blocks = format_ranges(&merge_numbers(self.shared.values().copied()));
            let message = format!(
                "blocks {blocks} of the extents file belong to {name} and to another file; both have the \
                 same bytes there"
            );
            findings.wrong(Part::Extents, message);
        }
        if self.bad.is_empty() {
            return;
        }
        let mut devices: Vec<_> = self.bad.values().copied().collect();
        devices.sort_unstable();
        let blocks = format_ranges(&merge_numbers(devices.into_iter()));
        let lost = self.damaged(if unit.inode.is_cached() { &record.dirty } else { &record.held });
        let lost: Vec<_> = lost
            .iter()
            .map(|range| unit.start() + u64::from(range.start)..unit.start() + u64::from(range.end))
            .collect();
        if lost.is_empty() {
            let message = format!(
                "blocks {blocks} of the extents file do not match their checksums: they held clean bytes of {name}, \
                 which the shared file system has"
            );
            findings.wrong(Part::Extents, message);
            return;
        }
        let message = format!(
            "bytes {} of {name} are lost: blocks {blocks} of the extents file do not match their checksums",
            format_ranges(&lost)
        );
        let losses = lost.into_iter().map(|bytes| Loss::of(unit.inode, file.clone(), Some(bytes)));
        findings.lost(Part::Extents, message, losses.collect());
    }

    /// Removes damaged blocks from the record, and moves shared ones to free blocks.
    pub(super) fn repair(
        &self,
        unit: UnitId,
        record: &mut UnitRecord,
        free: &mut impl Iterator<Item = u64>,
        findings: &mut Findings,
    ) -> Result<()> {
        for (&block, &device) in &self.shared {
            let full =
                || Fault::io("the extents file has no free block for a copy of a block that two files name");
            let target = free.next().ok_or_else(full)?;
            record.move_block(block, target);
            findings.copy((device, target));
        }
        for (&block, &device) in &self.bad {
            let bytes = bytes_of(&(block..block + 1));
            let start = device * u64::from(BLOCK);
            findings.save(Aside::Bytes { unit, start: bytes.start, device: start..start + u64::from(BLOCK) });
            record.held.remove(bytes.clone());
            record.dirty.remove(bytes);
        }
        record.drop_unused_blocks();
        Ok(())
    }
}
