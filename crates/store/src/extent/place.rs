//! Where units lie, for those who can read the disk by themselves.

use super::ExtentStore;
use super::record::{BLOCK, UnitRecord, blocks_of, bytes_of};
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::call::{Place, Run};
use tameike_core::wire::unit::UnitPlace;
use tameike_core::{Generation, Result, UnitId};
use tameike_io::BlockSums;
use tameike_io::disk::FreeClock;

impl UnitRecord {
    /// The blocks of `range`, if it is whole blocks of which it holds every byte.
    pub(super) fn whole_blocks(&self, range: &Range<u32>) -> Option<Range<u32>> {
        let blocks = blocks_of(range);
        (bytes_of(&blocks) == *range && self.held.contains(range)).then_some(blocks)
    }

    /// Where the device has `blocks`, of which it has every one.
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
    /// Where the disk has `range` of the unit, if it is whole blocks which the unit holds; clean bytes of an older generation are
    /// dropped first. They stay there as long as they do; [`FreeClock`] and their digest tell whether that is still so.
    ///
    /// # Errors
    /// `EIO` when the store below fails.
    pub async fn place(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> Result<Option<Place>> {
        let placed = self.placed(unit, range, generation).await?;
        Ok(placed.map(|(runs, sums, time)| Place { runs, digest: sums.digest(), time }))
    }

    /// As [`Self::place`], of the whole unit, with the checksum of each of its blocks.
    ///
    /// # Errors
    /// As there.
    pub async fn unit_place(&self, unit: UnitId, generation: Generation) -> Result<Option<UnitPlace>> {
        let placed = self.placed(unit, &(0..UNIT_SIZE as u32), generation).await?;
        Ok(placed.map(|(runs, sums, time)| UnitPlace { runs, sums: sums.as_bytes().to_vec(), time }))
    }

    async fn placed(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
    ) -> Result<Option<(Vec<Run>, BlockSums, u64)>> {
        // While it is held none of its blocks becomes free.
        let (_guard, Some(record)) = self.share(unit, generation).await? else { return Ok(None) };
        let Some(blocks) = record.whole_blocks(range) else { return Ok(None) };
        if unit.inode.is_cached() {
            self.books.lock().touch(unit, record.is_clean());
        }
        let time = self.clock.as_ref().map_or(0, FreeClock::now);
        Ok(Some((record.runs(&blocks), record.sums(&blocks), time)))
    }
}
