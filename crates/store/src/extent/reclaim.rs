//! Retired blocks become free again, the space of free blocks goes back to the file system below, and comes from there ahead of
//! writes.
//!
//! A task gives back, apart from requests, as long as there is something to do. It has the log synced only when
//! that is worth a sync.

use super::ExtentStore;
use super::allocator::Choice;
use super::record::BLOCK;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::Result;

/// Time between two rounds.
const ROUND_TIME: Duration = Duration::from_secs(1);
/// Rounds after which retired blocks are freed however few they are: their space may be of use to others.
const ROUNDS_MAX: u32 = 30;
/// Blocks given back in one call: 64 MiB.
const DISCARD_BLOCKS: u64 = (64 << 20) / BLOCK as u64;

/// Retired blocks beyond which the log is synced to free them: 32 MiB. Fewer wait for a sync that somebody asks
/// for, for a writer who needs them, or for their time.
const RETIRED_BLOCKS_MAX: u64 = (32 << 20) / BLOCK as u64;
/// The same in memory, where a sync costs nothing, and pages used again at once cost less than new ones: 4 MiB.
const RETIRED_BLOCKS_IN_MEMORY: u64 = (4 << 20) / BLOCK as u64;

impl ExtentStore {
    /// Starts the task if there is something to do and it does not run.
    pub(super) fn schedule_reclaim(&self) {
        if self.ledger.is_volatile() && self.books.lock().quarantined() > RETIRED_BLOCKS_IN_MEMORY {
            let store = self.alive();
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
                    // Work that came between the two lines above has seen the task as running. After a failure
                    // the next change tries again.
                    if !failed {
                        store.schedule_reclaim();
                    }
                    return;
                }
            }
        });
    }

    /// Frees the retired blocks.
    async fn release(&self) -> Result<()> {
        let confirmed = self.ledger.confirm().await?;
        self.free_retired(confirmed);
        Ok(())
    }

    /// Frees the blocks that were retired up to this record of the log.
    fn free_retired(&self, confirmed: u64) {
        let freed = |run: &Range<u64>| self.clock.iter().for_each(|clock| clock.freed(&bytes_below(run)));
        self.books.lock().release(confirmed, freed);
        self.space_appeared.notify(usize::MAX);
    }

    fn has_work(&self) -> bool {
        let books = self.books.lock();
        books.quarantined() > 0 || books.has_surplus()
    }

    /// `waited` counts the rounds that blocks have been left waiting.
    async fn reclaim_round(&self, waited: &mut u32) -> Result<()> {
        self.free_retired(self.ledger.confirmed());
        let left = self.books.lock().quarantined();
        *waited = if left > 0 { *waited + 1 } else { 0 };
        if left > RETIRED_BLOCKS_MAX || *waited >= ROUNDS_MAX || (left > 0 && self.ledger.is_volatile()) {
            *waited = 0;
            self.release().await?;
        }
        let reserve = self.books.lock().reserve();
        loop {
            let Some(run) = self.books.lock().begin_discard(reserve, DISCARD_BLOCKS) else {
                return Ok(());
            };
            let result = self.disk.discard(bytes_below(&run)).await;
            self.books.lock().end_discard(run, result.is_ok());
            self.space_appeared.notify(usize::MAX);
            result?;
        }
    }

    /// Sets space aside for blocks that writes are about to need, when few are left that have some: a write to a hole of the
    /// file waits until the file system has found space, and has all others wait.
    pub(super) fn schedule_stock(&self) {
        if self.ledger.is_volatile() {
            return;
        }
        let now = || self.runtime.clock.monotonic();
        let Some(run) = self.books.lock().begin_stock(now()) else { return };
        let store = self.alive();
        self.runtime.spawn(async move {
            let bytes = bytes_below(&run);
            match store.disk.allocate(bytes.clone()).await {
                Ok(()) => store.books.lock().end_stock(run),
                // The writes themselves will tell whether they lack space.
                Err(fault) => {
                    log::debug!("{fault}");
                    // A part may have been done.
                    report(store.disk.discard(bytes).await);
                    store.books.lock().refuse_stock(run, store.runtime.clock.monotonic());
                }
            }
            store.space_appeared.notify(usize::MAX);
        });
    }

    /// Waits for blocks that are on their way back, which `choice` is to be made from; says from which to choose
    /// then, or nothing when there are none.
    pub(super) async fn reclaim_now(&self, choice: Choice) -> Result<Option<Choice>> {
        let appeared = self.space_appeared.listen();
        let (returning, quarantined) = {
            let books = self.books.lock();
            (books.returning(), books.quarantined())
        };
        if quarantined > 0 {
            // Retired blocks have space.
            self.release().await?;
            return Ok(Some(choice));
        }
        if returning == 0 {
            return Ok(None);
        }
        // Space of other blocks may have gone back to where any can get it.
        appeared.await;
        Ok(Some(Choice::Any))
    }
}

/// The bytes of the device where these blocks are.
pub(super) fn bytes_below(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * u64::from(BLOCK)..blocks.end * u64::from(BLOCK)
}

fn report(result: Result<()>) {
    if let Err(fault) = result {
        log::warn!("cannot give space back yet: {fault}");
    }
}
