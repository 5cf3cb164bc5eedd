//! Damaged blocks of cached files: the store drops clean bytes, because the shared file system has them.

use super::ExtentStore;
use super::record::{BLOCK, UnitRecord, bytes_of, within};
use tameike_core::ranges::RangeSet;
use tameike_core::{Result, UnitId};
use tameike_io::Frame;

/// Bytes of a unit in blocks whose checksums do not match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damaged {
    /// Clean ones; the store has dropped them.
    pub dropped: RangeSet,
    /// Dirty ones; they are lost.
    pub lost: RangeSet,
}

impl ExtentStore {
    /// Verifies a unit of a cached file, and drops the clean bytes of damaged blocks.
    pub async fn drop_damaged(&self, unit: UnitId) -> Result<Damaged> {
        self.run_detached(|store| async move {
            store.ledger.wait_for_space().await?;
            let mut change = store.begin(unit).await?;
            let record = store.load(unit)?.unwrap_or_default();
            let (_, bad) = store.read_intact(&record).await?;
            let mut damaged = Damaged::default();
            for bytes in bad.iter() {
                within(&record.dirty, &bytes).iter().for_each(|lost| damaged.lost.insert(lost));
                within(&record.held, &bytes).iter().for_each(|held| damaged.dropped.insert(held));
            }
            damaged.lost.iter().for_each(|lost| damaged.dropped.remove(lost));
            damaged.dropped.iter().for_each(|clean| change.punch(&clean));
            change.commit()?;
            Ok(damaged)
        })
        .await
    }

    /// Reads all blocks of a unit. Returns also the bytes of those whose checksums do not match.
    pub(super) async fn read_intact(&self, record: &UnitRecord) -> Result<(Frame, RangeSet)> {
        let mut bad = RangeSet::new();
        let mut frame = self.scratch.take().await;
        for extent in &record.extents {
            let bytes = bytes_of(&extent.blocks());
            let place = extent.device * u64::from(BLOCK);
            let (filled, result) = self.disk.read(place, frame, bytes.clone()).await;
            result?;
            frame = filled;
            for block in extent.bad_blocks(&frame[bytes.start as usize..bytes.end as usize]) {
                bad.insert(bytes_of(&(block..block + 1)));
            }
        }
        Ok((frame, bad))
    }
}
