//! The index record of a unit: the bytes that it has, the dirty ones, and their extents.
//!
//! A unit is 256 blocks. Each block with a valid byte is stored in one block of the device; its other bytes are
//! undefined. Blocks never change in place. Key and value in the table:
//!
//! ```text
//! key    | 'u' | inode u64 | unit u64 |             big-endian, so that keys sort by file and unit
//! value  | flags u8 | postcard of UnitRecord |      flags: 1 = has dirty bytes
//! dirty  | 'y' | inode u64 | unit u64 | -> home u16    present while the unit has dirty bytes
//! ```
//!
//! A log record is the key and value of the unit; without a value, it removes the unit.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, Generation, HomeId, Result, UnitId};
use tameike_io::{BlockSums, crc32c};

mod log;

pub use log::apply;
pub(super) use log::{home_of_mark, key, log_body, mark_of_home, split_body, unit_of};

/// Size of a block, in bytes.
pub(super) const BLOCK: u32 = BLOCK_SIZE as u32;
const SUM_SIZE: usize = 4;
const DIRTY_FLAG: u8 = 1;
/// Sanity limit for block numbers of a device.
const DEVICE_BLOCKS_MAX: u64 = 1 << 51;

/// A run of blocks of the unit, stored in a run of blocks of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    pub(super) first: u32,
    pub(super) device: u64,
    /// Position among all writes of the store.
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

    pub(super) fn blocks(&self) -> Range<u32> {
        self.first..self.first + self.count()
    }

    pub(super) fn device_blocks(&self) -> Range<u64> {
        self.device..self.device + u64::from(self.count())
    }

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

    /// Blocks of the unit whose checksums do not match `bytes`: the content of all its blocks, shorter if the device
    /// ends before them.
    pub(super) fn bad_blocks(&self, bytes: &[u8]) -> Vec<u32> {
        let mut blocks = bytes.chunks_exact(BLOCK_SIZE);
        let sums = self.blocks().zip(self.sums.chunks(SUM_SIZE));
        let matches = |sum: &[u8], block: &[u8]| crc32c(block).to_le_bytes() == *sum;
        sums.filter(|(_, sum)| !blocks.next().is_some_and(|block| matches(sum, block)))
            .map(|(block, _)| block)
            .collect()
    }

    /// Verifies `bytes`, the content of exactly `blocks` of the unit. Returns the first block of the device that does
    /// not match, if any.
    pub(super) fn mismatch(&self, blocks: &Range<u32>, bytes: &[u8]) -> Option<u64> {
        let skip = (blocks.start - self.first) as usize;
        let sums = self.sums[skip * SUM_SIZE..].chunks(SUM_SIZE);
        let bad =
            bytes.chunks(BLOCK_SIZE).zip(sums).position(|(block, sum)| crc32c(block).to_le_bytes() != *sum);
        bad.map(|place| self.device + (skip + place) as u64)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnitRecord {
    /// Its home.
    pub(super) home: HomeId,
    /// Cached files: generation of the clean bytes.
    pub(super) generation: Generation,
    /// Bytes that the unit has.
    pub(super) held: RangeSet,
    /// The dirty ones of them.
    pub(super) dirty: RangeSet,
    /// Their extents, ascending by block.
    pub(super) extents: Vec<Extent>,
    /// Blocks of the unit without an extent for which space is reserved.
    pub(super) reserved: RangeSet,
}

pub(super) fn bytes_of(blocks: &Range<u32>) -> Range<u32> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

/// Blocks that have bytes of the range.
pub(super) fn blocks_of(bytes: &Range<u32>) -> Range<u32> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

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

    /// Number of blocks that count as used: stored and reserved.
    pub(super) fn space(&self) -> u64 {
        self.block_count() + u64::from(self.reserved.len())
    }

    /// Returns true if the record can be dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.reserved.is_empty()
    }

    /// Those of `blocks` that are neither stored nor reserved.
    pub(super) fn unreserved(&self, blocks: &Range<u32>) -> RangeSet {
        let mut missing: RangeSet = self.reserved.gaps(blocks.clone()).into_iter().collect();
        self.extents.iter().for_each(|extent| missing.remove(extent.blocks()));
        missing
    }

    pub(super) fn reserved_among(&self, blocks: &Range<u32>) -> u64 {
        u64::from(within(&self.reserved, blocks).len())
    }

    /// Drops the bytes of a range, and the reservations of whole blocks in it; returns the freed device blocks.
    pub(super) fn punch(&mut self, range: &Range<u32>) -> Vec<Range<u64>> {
        self.held.remove(range.clone());
        self.dirty.remove(range.clone());
        let whole = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        self.reserved.remove(whole.start..whole.end.max(whole.start));
        self.drop_unused_blocks()
    }

    /// Number of stored blocks among `blocks`.
    pub(super) fn blocks_among(&self, blocks: &Range<u32>) -> u64 {
        let count = |extent: &Extent| {
            extent.blocks().end.min(blocks.end).saturating_sub(extent.first.max(blocks.start))
        };
        self.extents.iter().map(|extent| u64::from(count(extent))).sum()
    }

    /// The checksums of `blocks`; the unit must have all of them.
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

    /// Replaces `blocks` by new extents; returns the freed device blocks.
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

    /// Changes the device block of one block of the unit.
    pub(super) fn move_block(&mut self, block: u32, device: u64) {
        let blocks = block..block + 1;
        if let Some(moved) = self.extents.iter().find_map(|extent| extent.part(blocks.clone())) {
            self.replace(&blocks, vec![Extent { device, ..moved }]);
        }
    }

    /// Returns true if the flags of an encoded record say that the unit has dirty bytes.
    pub(super) fn is_marked_dirty(value: &[u8]) -> bool {
        value.first() == Some(&DIRTY_FLAG)
    }

    /// The home in an encoded record; `None` if it is damaged.
    pub(super) fn home_of(value: &[u8]) -> Option<HomeId> {
        let (home, _) = postcard::take_from_bytes(value.get(1..)?).ok()?;
        Some(home)
    }

    /// Drops blocks without a valid byte; returns the freed device blocks.
    pub(super) fn drop_unused_blocks(&mut self) -> Vec<Range<u64>> {
        let mut freed = Vec::new();
        let needed: RangeSet = self.held.iter().map(|held| blocks_of(&held)).collect();
        for blocks in needed.gaps(0..BLOCKS_PER_UNIT as u32) {
            freed.extend(self.replace(&blocks, Vec::new()));
        }
        freed
    }

    pub(super) fn drop_clean(&mut self) -> Vec<Range<u64>> {
        self.held = self.dirty.clone();
        self.drop_unused_blocks()
    }

    pub(super) fn truncate(&mut self, size: u32) -> Vec<Range<u64>> {
        self.held.remove(size..UNIT_SIZE as u32);
        self.dirty.remove(size..UNIT_SIZE as u32);
        self.reserved.remove(size.div_ceil(BLOCK)..BLOCKS_PER_UNIT as u32);
        self.drop_unused_blocks()
    }

    /// Makes `flushed` clean, except in blocks written after `version`.
    pub(super) fn clean(&mut self, flushed: &RangeSet, version: u64) {
        for extent in self.extents.iter().filter(|extent| extent.version <= version) {
            within(flushed, &bytes_of(&extent.blocks())).iter().for_each(|range| self.dirty.remove(range));
        }
    }

    /// If there are more than `limit` dirty ranges, marks the clean bytes between them dirty, too.
    pub(super) fn merge_dirty(&mut self, limit: usize) {
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
                return Err("an extent is malformed");
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
            return Err("it reserves space for blocks that have an extent");
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let flags = if self.is_clean() { 0 } else { DIRTY_FLAG };
        postcard::to_extend(self, vec![flags])
            .map_err(|error| Fault::io(format!("encode an index record: {error}")))
    }

    /// Decodes a value of the table. The error of a damaged one names the unit.
    pub(super) fn decode(unit: UnitId, value: &[u8]) -> Result<Self> {
        let damaged = |why: &str| {
            Fault::io(format!("the index record of unit {} of {} is damaged: {why}", unit.index, unit.inode))
        };
        let (&flags, rest) = value.split_first().ok_or_else(|| damaged("it is empty"))?;
        let (record, rest): (Self, _) =
            postcard::take_from_bytes(rest).map_err(|error| damaged(&error.to_string()))?;
        if !rest.is_empty() || (flags == DIRTY_FLAG) == record.is_clean() {
            return Err(damaged("it has trailing bytes or wrong flags"));
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
    // Operations on a decoded record must not fail.
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
    fn the_unit_record_format_is_stable() {
        let unit = UnitId { inode: InodeId(0x8000_0000_0000_0102), index: 3 };
        let record = UnitRecord {
            home: HomeId(130),
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
            "7580000000000001020000000000000003018201",
            "09",
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
