//! Bytes of units, in extents of one disk.

use crate::ledger::Ledger;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::Space;
use tameike_core::{Generation, InodeId, Result, UnitId, View};
use tameike_io::disk::Disk;
use tameike_io::{Frame, Payload, Pool, Runtime};

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
pub struct ExtentStore {}

#[allow(unused_variables)]
impl ExtentStore {
    /// Reads the index and rebuilds the map of free space.
    pub async fn open(
        runtime: Runtime,
        ledger: Arc<Ledger>,
        disk: Arc<dyn Disk>,
        scratch: Pool,
        capacity: [u64; 3],
    ) -> Result<Arc<Self>> {
        todo!()
    }

    /// Writes `payload` at `offset` of the unit. `dirty` marks bytes that the shared file system does not have.
    ///
    /// # Errors
    /// `ENOSPC` when the view or the disk is full; clean units of the cache go first, least recently used.
    pub async fn write(
        &self,
        unit: UnitId,
        offset: u32,
        payload: Payload,
        dirty: bool,
        generation: Generation,
    ) -> Result<()> {
        todo!()
    }

    /// Adds clean bytes where the unit holds none; never overwrites. Does nothing when there is no room, or when
    /// the unit is of a newer generation.
    pub async fn fill(
        &self,
        unit: UnitId,
        offset: u32,
        payload: Payload,
        generation: Generation,
    ) -> Result<()> {
        todo!()
    }

    /// Reads what the unit holds of `range` into the same place of `frame`, and says which bytes it holds; other
    /// bytes of the frame stay as they are. Cached units: clean bytes of an older generation are dropped first.
    pub async fn read(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
    ) -> (Frame, Result<RangeSet>) {
        todo!()
    }

    /// Drops all bytes of the file at and after `size` and gives their space back.
    pub async fn truncate(&self, inode: InodeId, size: u64) -> Result<()> {
        todo!()
    }

    /// The file's units with dirty bytes, ascending.
    pub fn dirty_units(&self, inode: InodeId) -> Result<Vec<DirtyUnit>> {
        todo!()
    }

    /// Files with dirty bytes, ascending.
    pub fn dirty_inodes(&self) -> Result<Vec<InodeId>> {
        todo!()
    }

    /// The bytes of `flushed` are on the shared file system: they are clean, unless they were written again
    /// since. `generation` is that of the unit's clean bytes from now on.
    pub async fn mark_clean(&self, flushed: &DirtyUnit, generation: Generation) -> Result<()> {
        todo!()
    }

    /// Drops the file's clean bytes.
    pub async fn drop_clean(&self, inode: InodeId) -> Result<()> {
        todo!()
    }

    /// Capacity, use and dirty bytes of a view. Inodes are not counted here: always 0.
    pub fn space(&self, view: View) -> Space {
        todo!()
    }

    /// Waits until the view has room for one more unit, free or held by clean bytes.
    pub async fn wait_for_space(&self, view: View) {
        todo!()
    }

    /// Makes all acknowledged writes safe against the death of the agent, or (`durable`) power loss.
    pub async fn sync(&self, durable: bool) -> Result<()> {
        todo!()
    }

    /// Reads every unit and verifies its checksums.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        todo!()
    }
}
