//! Comparison of the copies of a unit, and repair of damaged blocks by the bytes of another copy.
//!
//! The *data* of a unit is what all its copies must have: the dirty bytes of a cached file, and all bytes of others. Bytes that a copy lacks
//! read as zero. So copies of other files may differ in which zeros they store, unless the comparison is exact.

use super::change::{Change, Refused};
use super::record::{UnitRecord, blocks_of, bytes_of, within};
use super::sparse::data_of;
use super::{ExtentStore, Pieces};
use std::ops::Range;
use tameike_core::limits::{BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, Result, UnitId};
use tameike_io::{BlockSums, Payload};

/// What one copy of a unit has.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The data.
    pub data: RangeSet,
    /// The checksum of each block of the unit. Bytes that are not intact data count as zero.
    pub sums: BlockSums,
    /// BLAKE3 digest of the same bytes: equal copies have equal digests, and others do not.
    pub digest: [u8; 32],
    /// Data in damaged blocks, and, if the comparison is exact, data that this copy lacks.
    pub bad: RangeSet,
    /// Bytes that this copy has as data, and that are none, if the comparison is exact.
    pub surplus: RangeSet,
}

/// What a copy of a unit is compared with.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The data of the other copy.
    pub data: RangeSet,
    /// Whether this copy shall have these bytes and no others. That of a cached file always does.
    pub is_exact: bool,
}

impl ExtentStore {
    /// Verifies a unit, and computes its checksums, to compare it with another copy; without one, this copy is the one that counts.
    ///
    /// # Errors
    /// `EINVAL` for an invalid set of bytes; `EIO` if the disk or the ledger fails.
    pub async fn examine(&self, unit: UnitId, expected: Option<Expected>) -> Result<Examined> {
        let is_exact = unit.inode.is_cached() || expected.as_ref().is_some_and(|expected| expected.is_exact);
        let data = expected.map(|expected| expected.data);
        if data.as_ref().is_some_and(|data| !data.is_in_order() || data.end() > UNIT_SIZE as u32) {
            return Err(Fault::new(Errno::EINVAL, "the data to examine is not in a unit"));
        }
        let _guard = self.locks.share(unit).await;
        let record = self.load(unit)?.unwrap_or_default();
        let (mut frame, damaged) = self.read_intact(&record).await?;
        let own = data_of(unit, record);
        let data = data.unwrap_or_else(|| own.clone());
        let intact = own.without(&damaged);
        for gap in intact.intersection(&data).gaps(0..UNIT_SIZE as u32) {
            frame[gap.start as usize..gap.end as usize].fill(0);
        }
        let bad = if is_exact { data.without(&intact) } else { own.intersection(&damaged) };
        let surplus = if is_exact { own.without(&data) } else { RangeSet::new() };
        let digest = blake3::hash(&frame[..]).into();
        Ok(Examined { sums: BlockSums::of(&frame[..]), digest, data, bad, surplus })
    }

    /// Reads whole blocks of a unit. Bytes that it lacks are zero.
    ///
    /// # Errors
    /// `EINVAL` for blocks outside of the unit; as [`Self::read`].
    pub async fn read_whole_blocks(&self, unit: UnitId, blocks: Range<u32>) -> Result<Vec<u8>> {
        if blocks.start > blocks.end || blocks.end as usize > BLOCKS_PER_UNIT {
            return Err(Fault::new(Errno::EINVAL, format!("blocks {blocks:?} are not in a unit")));
        }
        let _guard = self.locks.share(unit).await;
        let record = self.load(unit)?.unwrap_or_default();
        let frame = self.scratch.take().await;
        let (mut frame, result) = self.read_blocks(unit, &record, &blocks, frame).await;
        result?;
        let bytes = bytes_of(&blocks);
        for gap in record.held.gaps(bytes.clone()) {
            frame[gap.start as usize..gap.end as usize].fill(0);
        }
        Ok(frame[bytes.start as usize..bytes.end as usize].to_vec())
    }

    /// Replaces the data of damaged blocks by that of another copy, as far as that is `sound`. `bytes` is a whole unit. Blocks that are intact
    /// by now, and those with data that is not sound, stay.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn restore(&self, unit: UnitId, bytes: Payload, sound: RangeSet) -> Result<()> {
        self.ledger.wait_for_space().await?;
        self.run_detached(|store| async move {
            loop {
                let mut change = store.begin(unit).await?;
                let record = store.load(unit)?.unwrap_or_default();
                match store.restore_blocks(&mut change, (unit, record), &bytes, &sound).await {
                    Ok(()) => return change.commit(),
                    Err(refused) => store.wait_to_retry(change, refused).await?,
                }
            }
        })
        .await
    }

    async fn restore_blocks(
        &self,
        change: &mut Change<'_>,
        (unit, record): (UnitId, UnitRecord),
        bytes: &Payload,
        sound: &RangeSet,
    ) -> Result<(), Refused> {
        let (_, damaged) = self.read_intact(&record).await?;
        let data = data_of(unit, record);
        for block in damaged.iter().flat_map(|bytes| blocks_of(&bytes)) {
            let place = bytes_of(&(block..block + 1));
            let lost = within(&data, &place);
            if !lost.iter().all(|lost| sound.contains(&lost)) {
                continue;
            }
            // Nothing of the block is read again.
            change.punch(&place);
            for lost in lost.iter() {
                let pieces = Pieces::at(lost.start, bytes.slice(lost))?;
                change.put(&pieces, unit.inode.is_cached()).await?;
            }
        }
        Ok(())
    }
}
