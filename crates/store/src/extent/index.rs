//! The extent index in the ledger: opening a store from it, and queries.

use super::record::{UnitRecord, home_of_mark, key, unit_of};
use super::space::SpaceAccounting;
use super::{DirtyUnit, ExtentStore};
use crate::ledger::Ledger;
use crate::locks::Locks;
use crate::table::{ReadTable, prefix};
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, HomeSet, InodeId, Result, UnitId};
use tameike_io::disk::{Disk, FreeClock};
use tameike_io::{Pool, Runtime};

const BATCH: usize = 128;

/// The smallest key after all units of the file.
fn end_of(prefix: u8, inode: InodeId) -> Vec<u8> {
    key(prefix, UnitId { inode, index: u64::MAX })
}

/// The smallest key greater than `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn load(table: &dyn ReadTable, unit: UnitId) -> Result<Option<UnitRecord>> {
    table.get(&key(prefix::UNIT, unit))?.map(|value| UnitRecord::decode(unit, &value)).transpose()
}

impl ExtentStore {
    /// Reads the index and rebuilds the map of free space. `scratch` has at least one frame; `capacity` is in bytes, by
    /// [`tameike_core::View::index`].
    ///
    /// # Errors
    /// `EIO` if the ledger fails, or if the index names blocks twice or outside of the disk.
    pub async fn open(
        runtime: Runtime,
        ledger: Arc<Ledger>,
        disk: Arc<dyn Disk>,
        scratch: Pool,
        capacity: [u64; 3],
    ) -> Result<Arc<Self>> {
        Self::open_by(runtime, ledger, disk, scratch, capacity, &mut |_, fault| Err(fault))
    }

    /// As [`ExtentStore::open`], but adds invalid records to `damage` and leaves them in the index; reads of their
    /// units fail, because their blocks do not match their checksums. Callers should not write to such a store.
    pub async fn salvage(
        runtime: Runtime,
        ledger: Arc<Ledger>,
        disk: Arc<dyn Disk>,
        scratch: Pool,
        damage: &mut Vec<String>,
    ) -> Result<Arc<Self>> {
        Self::open_by(runtime, ledger, disk, scratch, [0; 3], &mut |key, fault| {
            damage.push(format!("unit {key:02x?}: {fault}"));
            Ok(())
        })
    }

    fn open_by(
        runtime: Runtime,
        ledger: Arc<Ledger>,
        disk: Arc<dyn Disk>,
        scratch: Pool,
        capacity: [u64; 3],
        wrong: &mut dyn FnMut(&[u8], Fault) -> Result<()>,
    ) -> Result<Arc<Self>> {
        let mut accounting = SpaceAccounting::new(disk.size() / BLOCK_SIZE as u64, disk.is_new(), capacity);
        let mut version = 0;
        let mut start = vec![prefix::UNIT];
        loop {
            let batch = ledger.read(|table| table.scan(&start, &[prefix::UNIT + 1], BATCH))?;
            for (key, value) in &batch {
                let decoded = unit_of(key).and_then(|unit| Ok((unit, UnitRecord::decode(unit, value)?)));
                let (unit, record) = match decoded {
                    Ok(decoded) => decoded,
                    Err(fault) => {
                        wrong(key, fault)?;
                        continue;
                    }
                };
                for extent in &record.extents {
                    if let Err(fault) = accounting.adopt(unit, &extent.device_blocks()) {
                        wrong(key, fault)?;
                    }
                }
                accounting.adopt_reserved(unit.inode.view(), record.reserved.len());
                version = version.max(record.version());
                if unit.inode.is_cached() {
                    accounting.count_dirty(unit.inode.view(), 0, record.dirty.len());
                    accounting.touch(unit, record.is_clean());
                }
            }
            match batch.last() {
                Some((key, _)) if batch.len() == BATCH => start = after(key),
                _ => break,
            }
        }
        let clock = ledger.is_volatile().then(|| FreeClock::create(disk.size())).transpose();
        let clock = clock.map_err(|error| Fault::from_os("create the shared memory of the clock", &error))?;
        let store = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            runtime,
            ledger,
            disk,
            scratch,
            locks: Locks::default(),
            accounting: Mutex::new(accounting),
            clock,
            versions: AtomicU64::new(version + 1),
            space_freed: Event::new(),
            reclaiming: AtomicBool::new(false),
        });
        store.schedule_reclaim();
        Ok(store)
    }

    pub(super) fn load(&self, unit: UnitId) -> Result<Option<UnitRecord>> {
        self.ledger.read(|table| load(table, unit))
    }

    /// Units of the file at `homes` from index `from` on, ascending.
    pub(super) fn units_from(
        &self,
        homes: &HomeSet,
        inode: InodeId,
        from: u64,
    ) -> impl Iterator<Item = Result<UnitId>> {
        let start = key(prefix::UNIT, UnitId { inode, index: from });
        self.units_between(homes, start, end_of(prefix::UNIT, inode))
    }

    /// All units at `homes`, ascending. Ends after an error.
    pub fn units_of(&self, homes: &HomeSet) -> impl Iterator<Item = Result<UnitId>> {
        self.units_between(homes, vec![prefix::UNIT], vec![prefix::UNIT + 1])
    }

    /// Reads the index in batches. Sees changes between batches. Ends after an error.
    fn units_between(
        &self,
        homes: &HomeSet,
        start: Vec<u8>,
        end: Vec<u8>,
    ) -> impl Iterator<Item = Result<UnitId>> {
        let mut next = Some(start);
        let homes = homes.clone();
        // Units with a damaged record are listed, so that their use fails.
        let is_listed =
            move |value: &[u8]| UnitRecord::home_of(value).is_none_or(|home| homes.contains(home));
        let batches = std::iter::from_fn(move || {
            let start = next.take()?;
            let batch = self.ledger.read(|table| table.scan(&start, &end, BATCH));
            Some(batch.map_or_else(
                |fault| vec![Err(fault)],
                |batch| {
                    next = batch.last().filter(|_| batch.len() == BATCH).map(|(key, _)| after(key));
                    let listed = batch.iter().filter(|(_, value)| is_listed(value));
                    listed.map(|(key, _)| unit_of(key)).collect()
                },
            ))
        });
        batches.flatten()
    }

    /// The file's first units at `homes` with dirty bytes, ascending, at most `limit`.
    pub fn dirty_units(&self, homes: &HomeSet, inode: InodeId, limit: usize) -> Result<Vec<DirtyUnit>> {
        let mut dirty = Vec::new();
        let mut start = key(prefix::DIRTY, UnitId { inode, index: 0 });
        loop {
            // In batches: a read of the table delays other tasks.
            let batch = BATCH.min(limit - dirty.len());
            let marks = self.ledger.read(|table| {
                let marks = table.scan(&start, &end_of(prefix::DIRTY, inode), batch)?;
                for (mark, value) in &marks {
                    let unit = unit_of(mark)?;
                    if home_of_mark(value).is_some_and(|home| !homes.contains(home)) {
                        continue;
                    }
                    if let Some(record) = load(table, unit)? {
                        let version = record.version();
                        dirty.push(DirtyUnit { home: record.home, unit, version, ranges: record.dirty });
                    }
                }
                Ok(marks)
            })?;
            match marks.last() {
                Some((last, _)) if marks.len() == batch && dirty.len() < limit => start = after(last),
                _ => return Ok(dirty),
            }
        }
    }

    /// The bytes of a unit that would stay dirty if it were marked clean now ([`ExtentStore::mark_clean`]).
    pub fn dirty_after(&self, flushed: &DirtyUnit) -> Result<RangeSet> {
        let Some(mut record) = self.load(flushed.unit)? else { return Ok(RangeSet::new()) };
        record.clean(&flushed.ranges, flushed.version);
        Ok(record.dirty)
    }

    /// The dirty bytes of a unit.
    pub fn dirty_of(&self, unit: UnitId) -> Result<RangeSet> {
        Ok(self.load(unit)?.map(|record| record.dirty).unwrap_or_default())
    }

    /// Number of bytes that this node has of the file, in at most `limit` units, and whether there are more units.
    pub fn held_bytes(&self, inode: InodeId, limit: usize) -> Result<(u64, bool)> {
        let (mut bytes, mut units) = (0, self.units_from(&HomeSet::All, inode, 0));
        for unit in units.by_ref().take(limit) {
            bytes += self.load(unit?)?.map_or(0, |record| u64::from(record.held.len()));
        }
        Ok((bytes, units.next().is_some()))
    }

    /// The next few files after `after` with dirty bytes at `homes`, ascending; empty at the end.
    pub fn dirty_inodes(&self, homes: &HomeSet, start_after: InodeId) -> Result<Vec<InodeId>> {
        let mut inodes = Vec::with_capacity(BATCH);
        let mut start = end_of(prefix::DIRTY, start_after);
        while inodes.len() < BATCH
            && let Some((mark, value)) =
                self.ledger.read(|table| table.scan(&start, &[prefix::DIRTY + 1], 1))?.pop()
        {
            if home_of_mark(&value).is_some_and(|home| !homes.contains(home)) {
                start = after(&mark);
                continue;
            }
            let inode = unit_of(&mark)?.inode;
            inodes.push(inode);
            start = end_of(prefix::DIRTY, inode);
        }
        Ok(inodes)
    }
}
