//! Extent locations of units, for processes that read the device directly.

use super::ExtentStore;
use super::record::{BLOCK, UnitRecord, blocks_of, bytes_of};
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::call::{ExtentLocation, Run};
use tameike_core::wire::unit::UnitLocation;
use tameike_core::{Generation, Result, UnitId};
use tameike_io::BlockSums;
use tameike_io::disk::FreeClock;

impl UnitRecord {
    /// The blocks of `range`, if it consists of whole blocks whose bytes the unit has.
    pub(super) fn whole_blocks(&self, range: &Range<u32>) -> Option<Range<u32>> {
        let blocks = blocks_of(range);
        (bytes_of(&blocks) == *range && self.held.contains(range)).then_some(blocks)
    }

    /// The device runs of `blocks`; the unit must have all of them.
    pub(super) fn runs(&self, blocks: &Range<u32>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for part in self.extents.iter().filter_map(|extent| extent.part(blocks.clone())) {
            let (at, length) = (part.device * u64::from(BLOCK), part.count() * BLOCK);
            match runs.last_mut() {
                Some(last) if last.at + u64::from(last.length) == at => last.length += length,
                _ => runs.push(Run { at, length }),
            }
        }
        runs
    }
}

impl ExtentStore {
    /// The extent location of `range` of the unit, if it consists of whole blocks that the unit has. Drops clean bytes
    /// of an older generation first. Readers detect a stale location by [`FreeClock`] and by the digest.
    pub async fn extent_location(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> Result<Option<ExtentLocation>> {
        let located = self.locate(unit, range, generation).await?;
        Ok(located.map(|(runs, sums, time)| ExtentLocation { runs, digest: sums.digest(), time }))
    }

    /// As [`Self::extent_location`], for the whole unit, with the checksum of each of its blocks.
    pub async fn unit_location(&self, unit: UnitId, generation: Generation) -> Result<Option<UnitLocation>> {
        let located = self.locate(unit, &(0..UNIT_SIZE as u32), generation).await?;
        Ok(located.map(|(runs, sums, time)| UnitLocation { runs, sums: sums.as_bytes().to_vec(), time }))
    }

    async fn locate(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> Result<Option<(Vec<Run>, BlockSums, u64)>> {
        // The guard keeps the unit's blocks from being freed.
        let (_guard, Some(record)) = self.share(unit, generation).await? else { return Ok(None) };
        let Some(blocks) = record.whole_blocks(range) else { return Ok(None) };
        if unit.inode.is_cached() {
            self.accounting.lock().touch(unit, record.is_clean());
        }
        let time = self.clock.as_ref().map_or(0, FreeClock::now);
        Ok(Some((record.runs(&blocks), record.sums(&blocks), time)))
    }
}
