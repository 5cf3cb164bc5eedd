//! Changes of single bytes of a unit, which read the blocks around them first.

use super::ExtentStore;
use super::record::BLOCK;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::patch::{PAGE_SIZE, Page, patches};
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, HomeId, Result, UnitId, View};
use tameike_io::Payload;

/// Blocks that a change stores, and those of them that it reads first.
struct Blocks {
    stored: RangeSet,
    needed: RangeSet,
}

/// The pages of a unit among the pages of its file.
fn pages_of(unit: UnitId) -> Range<u64> {
    let count = BLOCKS_PER_UNIT as u64;
    unit.index.saturating_mul(count)..unit.index.saturating_add(1).saturating_mul(count)
}

fn check_view(unit: UnitId) -> Result<()> {
    if unit.inode.view() == View::JobShared {
        return Ok(());
    }
    let problem = format!("{} is not a file of the job-shared view: its units cannot be patched", unit.inode);
    Err(Fault::new(Errno::EINVAL, problem))
}

impl ExtentStore {
    /// Applies a patch ([`tameike_core::patch`]) with pages of this unit, all of it or nothing.
    ///
    /// # Errors
    /// - `EINVAL` if the patch is malformed, or not one of this unit; or if the file is not job-shared.
    /// - `ENOSPC` as for [`Self::write`].
    pub async fn patch(&self, home: HomeId, unit: UnitId, patch: Payload) -> Result<()> {
        check_view(unit)?;
        let pages = pages_of(unit);
        let mut blocks = Blocks { stored: RangeSet::new(), needed: RangeSet::new() };
        for record in patches(&patch) {
            let record = record?;
            let page = u64::from(record.page());
            if !pages.contains(&page) {
                let problem = format!("page {page} is not one of unit {} of {}", unit.index, unit.inode);
                return Err(Fault::new(Errno::EINVAL, problem));
            }
            let block = (page - pages.start) as u32;
            blocks.stored.insert(block..block + 1);
            if !record.is_whole() {
                blocks.needed.insert(block..block + 1);
            }
        }
        if blocks.stored.is_empty() {
            return Ok(());
        }
        self.edit(home, unit, blocks, move |bytes| {
            let (unit, _) = bytes.as_chunks_mut::<PAGE_SIZE>();
            for record in patches(&patch).flatten() {
                let page: &mut Page = &mut unit[(u64::from(record.page()) - pages.start) as usize];
                record.apply(page);
            }
        })
        .await
    }

    /// Adds to the little-endian number of 64 bits at byte `offset` of a unit, and returns the number before; the sum
    /// wraps.
    ///
    /// # Errors
    /// - `EINVAL` if `offset` is not a multiple of 8 within the unit; or if the file is not job-shared.
    /// - `ENOSPC` as for [`Self::write`].
    pub async fn fetch_add(&self, home: HomeId, unit: UnitId, offset: u32, addend: u64) -> Result<u64> {
        self.change_number(home, unit, offset, move |number| number.wrapping_add(addend)).await
    }

    /// Sets the little-endian number of 64 bits at byte `offset` of a unit.
    ///
    /// # Errors
    /// As [`Self::fetch_add`].
    pub async fn set_number(&self, home: HomeId, unit: UnitId, offset: u32, value: u64) -> Result<()> {
        self.change_number(home, unit, offset, move |_| value).await.map(drop)
    }

    /// Changes a number; returns the number before.
    async fn change_number(
        &self,
        home: HomeId,
        unit: UnitId,
        offset: u32,
        change: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Result<u64> {
        check_view(unit)?;
        let place = offset as usize;
        if !offset.is_multiple_of(8) || place >= UNIT_SIZE {
            let problem = format!("byte {offset} is not the place of a number in a unit");
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        let block = RangeSet::from(offset / BLOCK..offset / BLOCK + 1);
        let blocks = Blocks { stored: block.clone(), needed: block };
        self.edit(home, unit, blocks, move |bytes| {
            let (numbers, _) = bytes.as_chunks_mut::<8>();
            let number = &mut numbers[place / 8];
            let previous = u64::from_le_bytes(*number);
            *number = change(previous).to_le_bytes();
            previous
        })
        .await
    }

    /// Changes blocks of a unit with the unit locked. `edit` may run several times, on the same bytes or newer ones; the
    /// result of the last run takes effect.
    async fn edit<T: Send + 'static>(
        &self,
        home: HomeId,
        unit: UnitId,
        blocks: Blocks,
        edit: impl Fn(&mut [u8]) -> T + Send + Sync + 'static,
    ) -> Result<T> {
        self.ledger.wait_for_space().await?;
        self.run_detached(|store: Arc<Self>| async move {
            loop {
                let mut change = store.begin(unit).await?;
                change.set_home(home);
                match change.edit(&blocks.stored, &blocks.needed, &edit).await {
                    Ok(result) => return change.finish().await.map(|()| result),
                    Err(refused) => store.wait_to_retry(change, refused).await?,
                }
            }
        })
        .await
    }
}
