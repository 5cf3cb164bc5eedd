//! Bytes of units, in extents of one disk.
//!
//! The index, one record per unit, is in the ledger. Blocks are never changed in place: new bytes go to free
//! blocks, then the record that names them is logged, then the blocks that they replace are retired. Every block
//! has a checksum, verified whenever it is read. The map of free blocks is in memory, rebuilt from the index.
//!
//! What the unit of a job-shared or node-local file does not hold is zero to its readers; what the unit of a
//! cached file does not hold is on the shared file system. This room only says which bytes are held.

mod allocator;
mod change;
pub(crate) mod check;
mod damaged;
mod index;
mod pieces;
mod place;
mod proof;
mod read;
mod reclaim;
mod record;
mod space;
mod sparse;
#[cfg(test)]
mod tests;

use crate::ledger::Ledger;
use crate::locks::Locks;
use change::Refused;
use event_listener::Event;
use parking_lot::Mutex;
use space::Books;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::Space;
use tameike_core::{Errno, Fault, Generation, InodeId, Result, UnitId, View};
use tameike_io::disk::{Disk, DiskMemory, FreeClock};
use tameike_io::os::runtime::promise;
use tameike_io::{Payload, Pool, Runtime};

pub use damaged::Damaged;
pub use pieces::Pieces;
pub use proof::ExtentData;
pub use read::Held;
pub use record::apply;

/// Dirty bytes of a unit as they were at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyUnit {
    /// Which unit.
    pub unit: UnitId,
    /// Its dirty bytes.
    pub ranges: RangeSet,
    /// The moment: what is written later is dirty again, whatever [`ExtentStore::mark_clean`] says.
    pub version: u64,
}

/// What a scrub found.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Units read.
    pub units: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Units that could not be read, each with what went wrong.
    pub damaged: Vec<(UnitId, String)>,
}

/// The units kept on one disk.
pub struct ExtentStore {
    me: Weak<Self>,
    runtime: Runtime,
    ledger: Arc<Ledger>,
    disk: Arc<dyn Disk>,
    scratch: Pool,
    locks: Locks<UnitId>,
    books: Mutex<Books>,
    /// When blocks became free; where others may read them by themselves.
    clock: Option<FreeClock>,
    /// Counts writes; larger than every version in the index.
    versions: AtomicU64,
    /// Bytes became clean, or blocks free.
    space_appeared: Event,
    reclaiming: AtomicBool,
}

fn check_range(offset: u32, length: usize) -> Result<()> {
    if offset as usize + length > UNIT_SIZE {
        return Err(Fault::new(
            Errno::EINVAL,
            format!("{length} bytes at byte {offset} reach beyond the end of a unit"),
        ));
    }
    Ok(())
}

impl ExtentStore {
    /// Runs `work` to its end even if the caller stops waiting: a write that is on its way to the disk keeps
    /// its blocks and its lock.
    async fn apart<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.alive());
        let (resolver, done) = promise();
        self.runtime.spawn(async move { resolver.resolve(work.await) });
        done.await
    }

    fn alive(&self) -> Arc<Self> {
        self.me.upgrade().expect("a store that is borrowed lives")
    }

    /// Writes pieces of the unit: all of them or none. `dirty` marks bytes that the shared file system does not have.
    ///
    /// # Errors
    /// `ENOSPC` when the view or the disk is full; clean units of the cache go first, least recently used.
    pub async fn write(
        &self,
        unit: UnitId,
        pieces: Pieces,
        dirty: bool,
        generation: Generation,
    ) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        self.ledger.room().await?;
        self.apart(|store| async move {
            loop {
                let mut change = store.begin(unit).await?;
                change.renew(generation);
                let refused = match change.put(&pieces, dirty).await {
                    Ok(()) => {
                        change.tidy().await?;
                        return change.commit();
                    }
                    Err(refused) => refused,
                };
                // Nobody waits for room with a unit in his hands: it may be the one that could go.
                match refused {
                    Refused::Busy(other) => {
                        drop(change);
                        drop(store.locks.hold(other).await);
                    }
                    Refused::Fault(fault) if fault.errno == Errno::ENOSPC && change.has_clean() => {
                        drop(change);
                        store.drop_clean_of(unit).await?;
                    }
                    Refused::Fault(fault) => return Err(fault),
                }
            }
        })
        .await
    }

    /// Adds clean bytes where the unit holds none; never overwrites. Does nothing when there is no room, or when
    /// the unit is of a newer generation. Clean units that were used after `victims_until` (see [`Self::time_of_use`]) do not go for it.
    ///
    /// # Errors
    /// `EIO` when the disk fails.
    pub async fn fill(
        &self,
        unit: UnitId,
        offset: u32,
        payload: Payload,
        generation: Generation,
        victims_until: u64,
    ) -> Result<()> {
        check_range(offset, payload.len())?;
        self.ledger.room().await?;
        self.apart(|store| async move {
            let mut change = store.begin(unit).await?;
            change.victims_until = victims_until;
            if !change.renew(generation) {
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

    /// Drops all bytes of the file at and after `size` and gives their space back.
    ///
    /// # Errors
    /// `EIO` when the store below fails; some units may then be cut and others not.
    pub async fn truncate(&self, inode: InodeId, size: u64) -> Result<()> {
        let (first, keep) = (size / UNIT_SIZE as u64, (size % UNIT_SIZE as u64) as u32);
        self.apart(|store| async move {
            let mut next = Some(first);
            while let Some(from) = next {
                let (units, more) = store.units_from(inode, from)?;
                for unit in units {
                    store.ledger.room().await?;
                    let mut change = store.begin(unit).await?;
                    change.truncate(if unit.index == first { keep } else { 0 });
                    change.commit()?;
                }
                next = more;
            }
            Ok(())
        })
        .await
    }

    /// The bytes of `flushed` are on the shared file system: they are clean, unless they were written again
    /// since. `generation` is that of the unit's clean bytes from now on.
    ///
    /// # Errors
    /// `EIO` when the store below fails.
    pub async fn mark_clean(&self, flushed: &DirtyUnit, generation: Generation) -> Result<()> {
        let flushed = flushed.clone();
        self.apart(|store| async move {
            let mut change = store.begin(flushed.unit).await?;
            change.mark_clean(&flushed, generation);
            change.commit()
        })
        .await
    }

    /// The time of use that was given last: units that are used from now on have later ones.
    pub fn time_of_use(&self) -> u64 {
        self.books.lock().time()
    }

    /// Whether a whole unit of the view may find room, as far as clean units can go that were not used after `victims_until`.
    pub fn has_room(&self, view: View, victims_until: u64) -> bool {
        let blocks = (UNIT_SIZE / tameike_core::limits::BLOCK_SIZE) as u64;
        self.books.lock().has_room_since(view, blocks, victims_until)
    }

    /// Drops the file's clean bytes.
    ///
    /// # Errors
    /// `EIO` when the store below fails.
    pub async fn drop_clean(&self, inode: InodeId) -> Result<()> {
        self.apart(|store| async move {
            let mut next = Some(0);
            while let Some(from) = next {
                let (units, more) = store.units_from(inode, from)?;
                for unit in units {
                    store.drop_clean_of(unit).await?;
                }
                next = more;
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

    /// Capacity, use and dirty bytes of a view. Inodes are not counted here: always 0.
    pub fn space(&self, view: View) -> Space {
        self.books.lock().space(view)
    }

    /// Waits until the view has room for one more unit, free or held by clean bytes.
    pub async fn wait_for_space(&self, view: View) {
        loop {
            let appeared = self.space_appeared.listen();
            if self.books.lock().has_room(view) {
                return;
            }
            appeared.await;
        }
    }

    /// For other processes of this host to read the disk by, when it lies in memory; see [`Disk::memory`].
    pub fn memory(&self) -> Option<DiskMemory> {
        let clock = self.clock.as_ref()?.memory().ok()?;
        Some(DiskMemory { bytes: self.disk.memory()?, clock })
    }

    /// Makes all acknowledged writes safe against the death of the agent, or (`durable`) power loss. The ledger
    /// makes bytes safe before the records that name them.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn sync(&self, durable: bool) -> Result<()> {
        self.ledger.sync(durable).await
    }
}

#[cfg(feature = "fuzz")]
pub(crate) use record::fuzz as fuzz_record;
