//! Extent store: data of units in blocks of one device, with checksums.
//!
//! - The index, one record per unit, is in the ledger.
//! - Blocks never change in place: a write goes to free blocks, logs the record that names them, then retires the
//!   blocks that they replace.
//! - Every block has a checksum, and each read verifies it.
//! - The map of free blocks is in memory, rebuilt from the index at start.
//!
//! Bytes that a unit of a job-shared or node-local file lacks read as zero; those that a unit of a cached file lacks
//! are on the shared file system. This module only reports which bytes it has.

mod allocator;
mod change;
pub(crate) mod check;
mod damaged;
mod data;
mod examine;
mod index;
mod location;
mod patch;
mod pieces;
mod read;
mod reclaim;
mod record;
mod space;
mod sparse;
#[cfg(test)]
mod tests;

use crate::ledger::Ledger;
use crate::locks::Locks;
use change::{Change, Refused};
use event_listener::Event;
use parking_lot::Mutex;
use space::SpaceAccounting;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::Space;
use tameike_core::{Errno, Fault, Generation, HomeId, HomeSet, InodeId, Result, UnitId, View};
use tameike_io::disk::{Disk, DiskMemory, FreeClock};
use tameike_io::os::runtime::promise;
use tameike_io::{Payload, Pool, Runtime};

pub use damaged::Damaged;
pub use data::ExtentData;
pub use examine::{Examined, Expected};
pub use pieces::Pieces;
pub use read::Held;
pub use record::apply;

/// The dirty bytes of a unit at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyUnit {
    /// Its home.
    pub home: HomeId,
    /// The unit.
    pub unit: UnitId,
    /// Its dirty bytes.
    pub ranges: RangeSet,
    /// Version of the last write. Later writes stay dirty when [`ExtentStore::mark_clean`] gets this value.
    pub version: u64,
}

/// Result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Number of units read.
    pub units: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Units that could not be read, each with the error.
    pub damaged: Vec<(UnitId, String)>,
}

/// The units on one device.
pub struct ExtentStore {
    me: Weak<Self>,
    runtime: Runtime,
    ledger: Arc<Ledger>,
    disk: Arc<dyn Disk>,
    scratch: Pool,
    locks: Locks<UnitId>,
    accounting: Mutex<SpaceAccounting>,
    /// Times at which blocks became free; present if other processes read the device directly.
    clock: Option<FreeClock>,
    /// Counts writes; larger than every version in the index.
    versions: AtomicU64,
    /// Notified when bytes became clean, or blocks free.
    space_freed: Event,
    reclaiming: AtomicBool,
}

fn check_range(offset: u32, length: usize) -> Result<()> {
    if offset as usize + length > UNIT_SIZE {
        return Err(Fault::new(Errno::EINVAL, format!("{length} bytes at byte {offset} exceed the unit")));
    }
    Ok(())
}

impl ExtentStore {
    /// Runs `work` in a separate task: if the caller is cancelled, a write in flight keeps its blocks and its lock.
    async fn run_detached<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.strong());
        let (resolver, done) = promise();
        self.runtime.spawn(async move { resolver.resolve(work.await) });
        done.await
    }

    fn strong(&self) -> Arc<Self> {
        self.me.upgrade().expect("the caller borrows a store in an Arc")
    }

    /// Writes `pieces` of a unit of `home`, all or none. `dirty` marks bytes that the shared file system does not have.
    ///
    /// # Errors
    /// `ENOSPC` if the view or the disk is full and no clean unit of the cache view can be evicted.
    pub async fn write(
        &self,
        home: HomeId,
        unit: UnitId,
        pieces: Pieces,
        dirty: bool,
        generation: Generation,
    ) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        self.ledger.wait_for_space().await?;
        self.run_detached(|store| async move {
            loop {
                let mut change = store.begin(unit).await?;
                change.set_home(home);
                change.set_generation(generation);
                match change.put(&pieces, dirty).await {
                    Ok(()) => return change.finish().await,
                    Err(refused) => store.wait_to_retry(change, refused).await?,
                }
            }
        })
        .await
    }

    /// Returns when a change that did not get its blocks may be tried again.
    async fn wait_to_retry(&self, change: Change<'_>, refused: Refused) -> Result<()> {
        // Must not wait with the unit locked: another writer may need to evict it.
        match refused {
            Refused::Busy(other) => {
                drop(change);
                drop(self.locks.hold(other).await);
                Ok(())
            }
            Refused::Fault(fault) if fault.errno == Errno::ENOSPC && change.has_clean() => {
                let unit = change.unit();
                drop(change);
                self.drop_clean_of(unit).await
            }
            Refused::Fault(fault) => Err(fault),
        }
    }

    /// Adds clean bytes where the unit has none; never overwrites. Does nothing if space is short or the unit has a
    /// newer generation. Clean units used after `victims_until` (see [`Self::time_of_use`]) are not evicted for it.
    pub async fn fill(
        &self,
        home: HomeId,
        unit: UnitId,
        offset: u32,
        payload: Payload,
        generation: Generation,
        victims_until: u64,
    ) -> Result<()> {
        check_range(offset, payload.len())?;
        self.ledger.wait_for_space().await?;
        self.run_detached(|store| async move {
            let mut change = store.begin(unit).await?;
            change.victims_until = victims_until;
            change.set_home(home);
            if !change.set_generation(generation) {
                return Ok(());
            }
            for gap in change.gaps(offset..offset + payload.len() as u32) {
                let bytes = payload.slice(gap.start - offset..gap.end - offset);
                match change.put(&Pieces::at(gap.start, bytes)?, false).await {
                    Ok(()) => {}
                    Err(Refused::Fault(fault)) if fault.errno != Errno::ENOSPC => return Err(fault),
                    Err(_) => return Ok(()),
                }
            }
            change.commit()
        })
        .await
    }

    /// Drops all bytes of the file's units at `homes` at and after `size`, and frees their blocks. After an error, some units may be
    /// truncated and others not.
    pub async fn truncate(&self, homes: &HomeSet, inode: InodeId, size: u64) -> Result<()> {
        let (first, keep) = (size / UNIT_SIZE as u64, (size % UNIT_SIZE as u64) as u32);
        let homes = homes.clone();
        self.run_detached(|store| async move {
            for unit in store.units_from(&homes, inode, first) {
                let unit = unit?;
                store.ledger.wait_for_space().await?;
                let mut change = store.begin(unit).await?;
                change.truncate(if unit.index == first { keep } else { 0 });
                change.commit()?;
            }
            Ok(())
        })
        .await
    }

    /// Drops all bytes of a unit, and frees its blocks.
    pub async fn drop_unit(&self, unit: UnitId) -> Result<()> {
        self.run_detached(move |store| async move {
            store.ledger.wait_for_space().await?;
            let mut change = store.begin(unit).await?;
            change.truncate(0);
            change.commit()
        })
        .await
    }

    /// Marks the bytes of `flushed` clean, because the shared file system has them; bytes written since stay dirty. The
    /// unit's clean bytes then have `generation`.
    pub async fn mark_clean(&self, flushed: &DirtyUnit, generation: Generation) -> Result<()> {
        let flushed = flushed.clone();
        self.run_detached(|store| async move {
            let mut change = store.begin(flushed.unit).await?;
            change.mark_clean(&flushed, generation);
            change.commit()
        })
        .await
    }

    /// Marks all bytes of the unit clean but `dirty`, as [`Self::mark_clean`] does in another copy.
    pub async fn clean_all_but(&self, unit: UnitId, dirty: RangeSet, generation: Generation) -> Result<()> {
        self.run_detached(|store| async move {
            let mut change = store.begin(unit).await?;
            change.clean_all_but(&dirty, generation);
            change.commit()
        })
        .await
    }

    /// The latest time of use; later uses of units have larger ones.
    pub fn time_of_use(&self) -> u64 {
        self.accounting.lock().time()
    }

    /// Returns true if the view has space for a whole unit, counting clean units not used after `victims_until` as
    /// space.
    pub fn has_space(&self, view: View, victims_until: u64) -> bool {
        let blocks = (UNIT_SIZE / tameike_core::limits::BLOCK_SIZE) as u64;
        self.accounting.lock().has_space_since(view, blocks, victims_until)
    }

    /// Drops the file's clean bytes.
    pub async fn drop_clean(&self, inode: InodeId) -> Result<()> {
        self.run_detached(|store| async move {
            for unit in store.units_from(&HomeSet::All, inode, 0) {
                store.drop_clean_of(unit?).await?;
            }
            Ok(())
        })
        .await
    }

    async fn drop_clean_of(&self, unit: UnitId) -> Result<()> {
        let mut change = self.begin(unit).await?;
        change.drop_clean();
        change.commit()
    }

    /// Capacity, use and dirty bytes of a view. Does not count inodes: always 0.
    pub fn space(&self, view: View) -> Space {
        self.accounting.lock().space(view)
    }

    /// Waits until the view has space for one more unit, free or evictable.
    pub async fn wait_for_space(&self, view: View) {
        loop {
            let freed = self.space_freed.listen();
            if self.accounting.lock().has_space(view) {
                return;
            }
            freed.await;
        }
    }

    /// Shared memory of the disk, if it is in memory, for other processes of this host; see [`Disk::memory`].
    pub fn memory(&self) -> Option<DiskMemory> {
        let clock = self.clock.as_ref()?.memory().ok()?;
        Some(DiskMemory { bytes: self.disk.memory()?, clock })
    }

    /// Makes all acknowledged writes persisted or (`durable`) durable. The ledger syncs data before the records that
    /// name it.
    pub async fn sync(&self, durable: bool) -> Result<()> {
        self.ledger.sync(durable).await
    }
}

#[cfg(feature = "fuzz")]
pub(crate) use record::fuzz as fuzz_record;
