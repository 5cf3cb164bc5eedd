//! Space reclamation: frees retired blocks, discards the space of free blocks, and preallocates space ahead of writes.
//!
//! A background task reclaims while there is work. It syncs the log only when enough blocks are retired.

use super::ExtentStore;
use super::allocator::Choice;
use super::record::BLOCK;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::Result;

const ROUND_TIME: Duration = Duration::from_secs(1);
/// Rounds after which even few retired blocks are freed, since other files on the disk may need their space.
const ROUNDS_MAX: u32 = 30;
/// Blocks per discard call: 64 MiB.
const DISCARD_BLOCKS: u64 = (64 << 20) / BLOCK as u64;

/// Retired blocks beyond which the task syncs the log to free them: 32 MiB. Fewer wait for another caller's sync, for a
/// writer that needs them, or for [`ROUNDS_MAX`].
const RETIRED_BLOCKS_MAX: u64 = (32 << 20) / BLOCK as u64;
/// The same in memory: 4 MiB, because a sync is free there and reused pages are cheaper than new ones.
const RETIRED_BLOCKS_IN_MEMORY: u64 = (4 << 20) / BLOCK as u64;

impl ExtentStore {
    /// Starts the task if there is work and it is not running.
    pub(super) fn schedule_reclaim(&self) {
        if self.ledger.is_volatile() && self.accounting.lock().quarantined() > RETIRED_BLOCKS_IN_MEMORY {
            let store = self.strong();
            self.runtime.spawn(async move { report(store.release().await) });
        }
        if !self.has_work() || self.reclaiming.swap(true, Ordering::AcqRel) {
            return;
        }
        let (store, runtime) = (self.me.clone(), self.runtime.clone());
        self.runtime.spawn(async move {
            let mut waited = 0;
            loop {
                runtime.sleep(ROUND_TIME).await;
                let Some(store) = store.upgrade() else { return };
                let result = store.reclaim_round(&mut waited).await;
                let failed = result.is_err();
                report(result);
                if failed || !store.has_work() {
                    store.reclaiming.store(false, Ordering::Release);
                    // Work scheduled between the two lines above found the task running. After a failure the next
                    // change retries.
                    if !failed {
                        store.schedule_reclaim();
                    }
                    return;
                }
            }
        });
    }

    /// Makes the records of retired blocks durable, and frees the blocks.
    async fn release(&self) -> Result<()> {
        let confirmed = self.ledger.confirm().await?;
        self.free_retired(confirmed);
        Ok(())
    }

    /// Frees the blocks that were retired up to this record of the log.
    fn free_retired(&self, confirmed: u64) {
        let freed = |run: &Range<u64>| self.clock.iter().for_each(|clock| clock.freed(&bytes_below(run)));
        self.accounting.lock().release(confirmed, freed);
        self.space_freed.notify(usize::MAX);
    }

    fn has_work(&self) -> bool {
        let accounting = self.accounting.lock();
        accounting.quarantined() > 0 || accounting.has_surplus()
    }

    /// `waited` counts the rounds in which blocks have stayed retired.
    async fn reclaim_round(&self, waited: &mut u32) -> Result<()> {
        self.free_retired(self.ledger.confirmed());
        let left = self.accounting.lock().quarantined();
        *waited = if left > 0 { *waited + 1 } else { 0 };
        if left > RETIRED_BLOCKS_MAX || *waited >= ROUNDS_MAX || (left > 0 && self.ledger.is_volatile()) {
            *waited = 0;
            self.release().await?;
        }
        let keep = self.accounting.lock().warm_target();
        loop {
            let Some(run) = self.accounting.lock().begin_discard(keep, DISCARD_BLOCKS) else {
                return Ok(());
            };
            let result = self.disk.discard(bytes_below(&run)).await;
            self.accounting.lock().end_discard(run, result.is_ok());
            self.space_freed.notify(usize::MAX);
            result?;
        }
    }

    /// Preallocates space for the blocks of coming writes when few warm blocks are left: a write to a hole of the file
    /// waits until the file system has found space, and blocks all other writes meanwhile.
    pub(super) fn schedule_preallocation(&self) {
        if self.ledger.is_volatile() {
            return;
        }
        let now = || self.runtime.clock.monotonic();
        let Some(run) = self.accounting.lock().begin_preallocation(now()) else { return };
        let store = self.strong();
        self.runtime.spawn(async move {
            let bytes = bytes_below(&run);
            match store.disk.allocate(bytes.clone()).await {
                Ok(()) => store.accounting.lock().end_preallocation(run),
                // The writes themselves report ENOSPC.
                Err(fault) => {
                    log::debug!("{fault}");
                    // A part may have been allocated.
                    report(store.disk.discard(bytes).await);
                    store.accounting.lock().fail_preallocation(run, store.runtime.clock.monotonic());
                }
            }
            store.space_freed.notify(usize::MAX);
        });
    }

    /// Waits for blocks that are about to become free, for an allocation from `choice`. Returns which blocks to
    /// allocate from then, or `None` if none are coming.
    pub(super) async fn reclaim_now(&self, choice: Choice) -> Result<Option<Choice>> {
        let freed = self.space_freed.listen();
        let (returning, quarantined) = {
            let accounting = self.accounting.lock();
            (accounting.returning(), accounting.quarantined())
        };
        if quarantined > 0 {
            // Retired blocks are warm.
            self.release().await?;
            return Ok(Some(choice));
        }
        if returning == 0 {
            return Ok(None);
        }
        // Discards may have freed space that any block can get.
        freed.await;
        Ok(Some(Choice::Any))
    }
}

pub(super) fn bytes_below(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * u64::from(BLOCK)..blocks.end * u64::from(BLOCK)
}

fn report(result: Result<()>) {
    if let Err(fault) = result {
        log::warn!("cannot free space, will retry: {fault}");
    }
}
