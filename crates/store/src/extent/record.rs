//! The index record of a unit: which bytes it holds, which of them are dirty, and where they lie.
//!
//! A unit is 256 blocks. Each block that holds a byte lies in one block of the device; bytes of it that the
//! unit does not hold are of no meaning. Blocks are never changed in place. Key and value in the table:
//!
//! ```text
//! key    | 'u' | inode u64 | unit u64 |             big-endian, so that keys sort by file and unit
//! value  | flags u8 | postcard of UnitRecord |      flags: 1 = has dirty bytes
//! dirty  | 'y' | inode u64 | unit u64 | -> empty    present while the unit has dirty bytes
//! ```
//!
//! A record of the log is key and value of the unit; without a value, the unit is removed.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, Generation, Result, UnitId};
use tameike_io::{BlockSums, crc32c};

mod log;

pub use log::apply;
pub(super) use log::{key, log_body, split_body, unit_of};

/// Size of a block, in bytes.
pub(super) const BLOCK: u32 = BLOCK_SIZE as u32;
const SUM_SIZE: usize = 4;
const DIRTY_FLAG: u8 = 1;
/// No device has so many blocks.
const DEVICE_BLOCKS_MAX: u64 = 1 << 51;

/// A run of blocks of the unit in a run of blocks of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    /// First block in the unit.
    pub(super) first: u32,
    /// First block on the device.
    pub(super) device: u64,
    /// When it was written, among all writes of the store.
    pub(super) version: u64,
    /// CRC-32C of each block, little-endian.
    #[serde(with = "serde_bytes")]
    sums: Vec<u8>,
}

impl Extent {
    /// The extent of whole blocks with these checksums.
    pub(super) fn new(first: u32, device: u64, version: u64, sums: &BlockSums) -> Self {
        Self { first, device, version, sums: sums.as_bytes().to_vec() }
    }

    pub(super) fn count(&self) -> u32 {
        (self.sums.len() / SUM_SIZE) as u32
    }

    /// Its blocks in the unit.
    pub(super) fn blocks(&self) -> Range<u32> {
        self.first..self.first + self.count()
    }

    /// Its blocks on the device.
    pub(super) fn device_blocks(&self) -> Range<u64> {
        self.device..self.device + u64::from(self.count())
    }

    /// The part of it in `blocks` of the unit.
    pub(super) fn part(&self, blocks: Range<u32>) -> Option<Self> {
        let (start, end) = (blocks.start.max(self.first), blocks.end.min(self.blocks().end));
        (start < end).then(|| {
            let (skip, end) = ((start - self.first) as usize, (end - self.first) as usize);
            Self {
                first: start,
                device: self.device + skip as u64,
                version: self.version,
                sums: self.sums[skip * SUM_SIZE..end * SUM_SIZE].to_vec(),
            }
        })
    }

    /// Its blocks in the unit that do not match their checksums in `bytes`, the content of all of its blocks or, where
    /// the device ends before them, less.
    pub(super) fn bad_blocks(&self, bytes: &[u8]) -> Vec<u32> {
        let mut blocks = bytes.chunks_exact(BLOCK_SIZE);
        let sums = self.blocks().zip(self.sums.chunks(SUM_SIZE));
        let matches = |sum: &[u8], block: &[u8]| crc32c(block).to_le_bytes() == *sum;
        sums.filter(|(_, sum)| !blocks.next().is_some_and(|block| matches(sum, block)))
            .map(|(block, _)| block)
            .collect()
    }

    /// The parts of it in `blocks` of the unit, verified against `bytes`, the content of exactly these blocks:
    /// the first block of the device that does not match, if any.
    pub(super) fn mismatch(&self, blocks: &Range<u32>, bytes: &[u8]) -> Option<u64> {
        let skip = (blocks.start - self.first) as usize;
        let sums = self.sums[skip * SUM_SIZE..].chunks(SUM_SIZE);
        let bad =
            bytes.chunks(BLOCK_SIZE).zip(sums).position(|(block, sum)| crc32c(block).to_le_bytes() != *sum);
        bad.map(|place| self.device + (skip + place) as u64)
    }
}

/// What a unit holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnitRecord {
    /// Cached files: version of the file to which the clean bytes belong.
    pub(super) generation: Generation,
    /// Bytes that it holds.
    pub(super) held: RangeSet,
    /// Of them, bytes that the shared file system does not have.
    pub(super) dirty: RangeSet,
    /// Where they lie; ascending by block.
    pub(super) extents: Vec<Extent>,
    /// Blocks of the unit without an extent for which room is set aside.
    pub(super) reserved: RangeSet,
}

/// Bytes of blocks.
pub(super) fn bytes_of(blocks: &Range<u32>) -> Range<u32> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

/// Blocks that have bytes of the range.
pub(super) fn blocks_of(bytes: &Range<u32>) -> Range<u32> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

/// The bytes of `set` within `range`.
pub(super) fn within(set: &RangeSet, range: &Range<u32>) -> RangeSet {
    set.iter()
        .map(|held| held.start.max(range.start)..held.end.min(range.end))
        .filter(|held| held.start < held.end)
        .collect()
}

impl UnitRecord {
    /// Version of the last write.
    pub(super) fn version(&self) -> u64 {
        self.extents.iter().map(|extent| extent.version).max().unwrap_or(0)
    }

    pub(super) fn block_count(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.count())).sum()
    }

    /// Number of blocks that it counts as used: those it has, and those set aside.
    pub(super) fn space(&self) -> u64 {
        self.block_count() + u64::from(self.reserved.len())
    }

    /// Whether there is nothing to remember of the unit.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.reserved.is_empty()
    }

    /// Those of `blocks` that it neither has nor has set aside.
    pub(super) fn unreserved(&self, blocks: &Range<u32>) -> RangeSet {
        let mut missing: RangeSet = self.reserved.gaps(blocks.clone()).into_iter().collect();
        self.extents.iter().for_each(|extent| missing.remove(extent.blocks()));
        missing
    }

    /// Number of blocks set aside among `blocks`.
    pub(super) fn reserved_among(&self, blocks: &Range<u32>) -> u64 {
        u64::from(within(&self.reserved, blocks).len())
    }

    /// Drops the bytes of a range, and what is set aside for blocks that lie in it; returns what was on the device.
    pub(super) fn punch(&mut self, range: &Range<u32>) -> Vec<Range<u64>> {
        self.held.remove(range.clone());
        self.dirty.remove(range.clone());
        let whole = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        self.reserved.remove(whole.start..whole.end.max(whole.start));
        self.release_unheld()
    }

    /// Number of blocks it has among `blocks`.
    pub(super) fn blocks_among(&self, blocks: &Range<u32>) -> u64 {
        let count = |extent: &Extent| {
            extent.blocks().end.min(blocks.end).saturating_sub(extent.first.max(blocks.start))
        };
        self.extents.iter().map(|extent| u64::from(count(extent))).sum()
    }

    /// The checksums of `blocks`, of which it has every one.
    pub(super) fn sums(&self, blocks: &Range<u32>) -> BlockSums {
        let parts = self.extents.iter().filter_map(|extent| extent.part(blocks.clone()));
        BlockSums::from_bytes(parts.flat_map(|part| part.sums))
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    pub(super) fn has_clean(&self) -> bool {
        self.held.len() > self.dirty.len()
    }

    /// Puts new extents in the place of `blocks`; returns what the old ones had on the device.
    pub(super) fn replace(&mut self, blocks: &Range<u32>, new: Vec<Extent>) -> Vec<Range<u64>> {
        let mut freed = Vec::new();
        let mut kept = Vec::with_capacity(self.extents.len() + new.len() + 1);
        for old in self.extents.drain(..) {
            freed.extend(old.part(blocks.clone()).map(|part| part.device_blocks()));
            kept.extend(old.part(0..blocks.start));
            kept.extend(old.part(blocks.end..BLOCKS_PER_UNIT as u32));
        }
        kept.extend(new);
        kept.sort_by_key(|extent| extent.first);
        for extent in kept {
            match self.extents.last_mut() {
                Some(last)
                    if last.blocks().end == extent.first && last.device_blocks().end == extent.device =>
                {
                    last.version = last.version.max(extent.version);
                    last.sums.extend_from_slice(&extent.sums);
                }
                _ => self.extents.push(extent),
            }
        }
        freed
    }

    /// One block of the unit lies elsewhere on the device.
    pub(super) fn move_block(&mut self, block: u32, device: u64) {
        let blocks = block..block + 1;
        if let Some(moved) = self.extents.iter().find_map(|extent| extent.part(blocks.clone())) {
            self.replace(&blocks, vec![Extent { device, ..moved }]);
        }
    }

    /// Whether a value of the table says that the unit has dirty bytes.
    pub(super) fn is_marked_dirty(value: &[u8]) -> bool {
        value.first() == Some(&DIRTY_FLAG)
    }

    /// Gives up blocks without a held byte; returns what they had on the device.
    pub(super) fn release_unheld(&mut self) -> Vec<Range<u64>> {
        let mut freed = Vec::new();
        let needed: RangeSet = self.held.iter().map(|held| blocks_of(&held)).collect();
        for blocks in needed.gaps(0..BLOCKS_PER_UNIT as u32) {
            freed.extend(self.replace(&blocks, Vec::new()));
        }
        freed
    }

    /// Drops the clean bytes.
    pub(super) fn drop_clean(&mut self) -> Vec<Range<u64>> {
        self.held = self.dirty.clone();
        self.release_unheld()
    }

    /// Drops the bytes at and after `size`.
    pub(super) fn truncate(&mut self, size: u32) -> Vec<Range<u64>> {
        self.held.remove(size..UNIT_SIZE as u32);
        self.dirty.remove(size..UNIT_SIZE as u32);
        self.reserved.remove(size.div_ceil(BLOCK)..BLOCKS_PER_UNIT as u32);
        self.release_unheld()
    }

    /// Makes `flushed` clean, except in blocks written after `version`.
    pub(super) fn clean(&mut self, flushed: &RangeSet, version: u64) {
        for extent in self.extents.iter().filter(|extent| extent.version <= version) {
            within(flushed, &bytes_of(&extent.blocks())).iter().for_each(|range| self.dirty.remove(range));
        }
    }

    /// Takes clean bytes between dirty ones as dirty too when there are more than `limit` ranges.
    pub(super) fn join_dirty(&mut self, limit: usize) {
        if self.dirty.count() > limit {
            for gap in self.dirty.gaps(0..self.dirty.end()) {
                if gap.start > 0 && self.held.contains(&gap) {
                    self.dirty.insert(gap);
                }
            }
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        if !self.held.is_in_order() || !self.dirty.is_in_order() || self.held.end() > UNIT_SIZE as u32 {
            return Err("its byte ranges are not in order");
        }
        if !self.dirty.iter().all(|range| self.held.contains(&range)) {
            return Err("it has dirty bytes that it does not hold");
        }
        let mut blocks = RangeSet::new();
        for extent in &self.extents {
            let in_unit =
                (extent.first as usize) < BLOCKS_PER_UNIT && extent.blocks().end as usize <= BLOCKS_PER_UNIT;
            let on_device = extent.device < DEVICE_BLOCKS_MAX;
            if extent.sums.is_empty() || extent.sums.len() % SUM_SIZE != 0 || !in_unit || !on_device {
                return Err("an extent is out of shape");
            }
            if extent.first < blocks.end() {
                return Err("its extents are not in order");
            }
            blocks.insert(extent.blocks());
        }
        if !self.held.iter().all(|held| blocks.contains(&blocks_of(&held))) {
            return Err("it holds bytes without an extent");
        }
        let free = |range: Range<u32>| within(&blocks, &range).is_empty();
        if !self.reserved.is_in_order()
            || self.reserved.end() as usize > BLOCKS_PER_UNIT
            || !self.reserved.iter().all(free)
        {
            return Err("it has set room aside for blocks that it has");
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let flags = if self.is_clean() { 0 } else { DIRTY_FLAG };
        postcard::to_extend(self, vec![flags])
            .map_err(|error| Fault::io(format!("encode a unit record: {error}")))
    }

    /// Takes a value of the table apart.
    ///
    /// # Errors
    /// `EIO` with the unit's name when it is damaged.
    pub(super) fn decode(unit: UnitId, value: &[u8]) -> Result<Self> {
        let damaged = |why: &str| {
            Fault::io(format!("the index record of unit {} of {} is damaged: {why}", unit.index, unit.inode))
        };
        let (&flags, rest) = value.split_first().ok_or_else(|| damaged("it is empty"))?;
        let (record, rest): (Self, _) =
            postcard::take_from_bytes(rest).map_err(|error| damaged(&error.to_string()))?;
        if !rest.is_empty() || (flags == DIRTY_FLAG) == record.is_clean() {
            return Err(damaged("it does not end where it should, or its flags are wrong"));
        }
        record.check().map_err(damaged)?;
        Ok(record)
    }
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let unit = UnitId { inode: tameike_core::InodeId(0x8000_0000_0000_0001), index: 0 };
    let Ok(record) = UnitRecord::decode(unit, bytes) else { return };
    let again = record.encode().and_then(|bytes| UnitRecord::decode(unit, &bytes));
    assert_eq!(again.as_ref(), Ok(&record));
    // What is decoded can be worked with.
    let mut changed = record.clone();
    changed.replace(&(3..70), Vec::new());
    changed.held.remove(3 * BLOCK..70 * BLOCK);
    changed.dirty.remove(3 * BLOCK..70 * BLOCK);
    assert!(changed.check().is_ok());
    changed.truncate(5000);
    changed.drop_clean();
    assert!(changed.check().is_ok() && changed.block_count() <= record.block_count());
    for extent in &record.extents {
        assert_eq!(extent.bad_blocks(&[]).len(), extent.count() as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::InodeId;

    #[test]
    fn the_bytes_of_a_unit_record_stay_as_they_are() {
        let unit = UnitId { inode: InodeId(0x8000_0000_0000_0102), index: 3 };
        let record = UnitRecord {
            generation: Generation(9),
            held: [0..5000, 8192..8200].into_iter().collect(),
            dirty: std::iter::once(100..300).collect(),
            extents: vec![
                Extent::new(0, 300, 7, &BlockSums::of(&[0; 8192])),
                Extent::new(2, 130, 128, &BlockSums::of(&[1; 4096])),
            ],
            reserved: std::iter::once(4..256).collect(),
        };
        let golden = concat!(
            "75800000000000010200000000000000030109",
            "02008827804088400164ac02",
            "0200ac0207088941f9988941f998",
            "0282018001047f6b1842",
            "01048002",
        );
        let body = log_body(unit, Some(&record)).unwrap();
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        let (found, value) = split_body(&body).unwrap();
        assert_eq!((found, UnitRecord::decode(found, value).unwrap()), (unit, record));
        assert_eq!(log_body(unit, None).unwrap(), body[..log::KEY_SIZE]);
    }
}
