//! What is wrong with the blocks of one unit, in words and as a change of its record.

use super::super::record::{BLOCK, UnitRecord, bytes_of, within};
use crate::check::{Aside, Book, Loss, Part};
use std::collections::BTreeMap;
use std::ops::Range;
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, Result, UnitId};

/// Ranges named one by one in words.
const RANGES_MAX: usize = 8;

/// Blocks of a unit with the blocks of the device in which they are said to lie.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Without their checksums.
    pub(super) bad: BTreeMap<u32, u64>,
    /// Right, but another unit names them, too.
    pub(super) shared: BTreeMap<u32, u64>,
}

/// Ranges with their last numbers, in words.
fn in_words(ranges: &[Range<u64>]) -> String {
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

fn joined(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
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

    /// The bytes of `set` in damaged blocks.
    fn damaged(&self, set: &RangeSet) -> RangeSet {
        let bytes: RangeSet = self.bad.keys().map(|block| bytes_of(&(*block..block + 1))).collect();
        bytes.iter().flat_map(|range| within(set, &range).iter().collect::<Vec<_>>()).collect()
    }

    /// Says what is wrong, before the record is changed.
    pub(super) fn tell(
        &self,
        unit: UnitId,
        record: &UnitRecord,
        called: &str,
        file: Option<String>,
        book: &mut Book,
    ) {
        if !self.shared.is_empty() {
            let blocks = in_words(&joined(self.shared.values().copied()));
            let words = format!(
                "blocks {blocks} of the extents file belong to {called} and to another file as well; both have the \
                 same bytes there"
            );
            book.wrong(Part::Extents, words);
        }
        if self.bad.is_empty() {
            return;
        }
        let mut devices: Vec<_> = self.bad.values().copied().collect();
        devices.sort_unstable();
        let blocks = in_words(&joined(devices.into_iter()));
        let lost = self.damaged(if unit.inode.is_cached() { &record.dirty } else { &record.held });
        let lost: Vec<_> = lost
            .iter()
            .map(|range| unit.start() + u64::from(range.start)..unit.start() + u64::from(range.end))
            .collect();
        if lost.is_empty() {
            let words = format!(
                "blocks {blocks} of the extents file do not have their checksums: they held clean bytes of {called}, \
                 which the shared file system has"
            );
            book.wrong(Part::Extents, words);
            return;
        }
        let words = format!(
            "bytes {} of {called} are lost: blocks {blocks} of the extents file do not have their checksums",
            in_words(&lost)
        );
        let losses = lost.into_iter().map(|bytes| Loss::of(unit.inode, file.clone(), Some(bytes)));
        book.lost(Part::Extents, words, losses.collect());
    }

    /// Takes the damaged blocks out of the record, and gives shared ones a place of their own.
    pub(super) fn cut(
        &self,
        unit: UnitId,
        record: &mut UnitRecord,
        free: &mut impl Iterator<Item = u64>,
        book: &mut Book,
    ) -> Result<()> {
        for (&block, &device) in &self.shared {
            let full =
                || Fault::io("no block of the extents file is free for a copy of one that two files name");
            let place = free.next().ok_or_else(full)?;
            record.move_block(block, place);
            book.copy((device, place));
        }
        for (&block, &device) in &self.bad {
            let bytes = bytes_of(&(block..block + 1));
            let place = device * u64::from(BLOCK);
            book.set_aside(Aside::Bytes {
                unit,
                start: bytes.start,
                device: place..place + u64::from(BLOCK),
            });
            record.held.remove(bytes.clone());
            record.dirty.remove(bytes);
        }
        record.release_unheld();
        Ok(())
    }
}
