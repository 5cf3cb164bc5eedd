//! Sparse files: reservation of space, hole punching, and search for data and holes.
//!
//! Reserved space counts as used by the view, but names no blocks of the device: blocks never change in place, so a
//! later write allocates blocks anyway. The device has more blocks than all views may use. Cached files need no
//! reservation, because their space is on the shared file system.

use super::ExtentStore;
use super::record::{BLOCK, UnitRecord, blocks_of};
use super::space::Shortage;
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{HomeId, HomeSet, InodeId, Result, UnitId, UnitsOfHomes};

const UNIT: u64 = UNIT_SIZE as u64;
/// Number of units examined per search, which delays other tasks.
const EXAMINED_MAX: usize = 1024;

/// Indexes of the units that have bytes of the range, each with its home.
fn units<'a>(bytes: &Range<u64>, own: &'a UnitsOfHomes) -> impl Iterator<Item = (u64, HomeId)> + use<'a> {
    let end = bytes.end.div_ceil(UNIT);
    own.from(bytes.start / UNIT).take_while(move |(index, _)| *index < end)
}

fn part(bytes: &Range<u64>, unit: UnitId) -> Range<u32> {
    let within = |place: u64| place.clamp(unit.start(), unit.start() + UNIT) - unit.start();
    within(bytes.start) as u32..within(bytes.end) as u32
}

/// The ranges that count as data: dirty bytes of a cached file, valid bytes of others.
pub(super) fn data_of(unit: UnitId, record: UnitRecord) -> RangeSet {
    if unit.inode.is_cached() { record.dirty } else { record.held }
}

impl ExtentStore {
    /// Reserves or punches `bytes` of the file in its units at `homes`, which are `own`.
    ///
    /// # Errors
    /// `ENOSPC` if the view lacks space for the reservation. If that is known in advance, nothing changes.
    pub async fn change_space(
        &self,
        homes: &HomeSet,
        inode: InodeId,
        change: SpaceChange,
        bytes: Range<u64>,
        own: UnitsOfHomes,
    ) -> Result<()> {
        let homes = homes.clone();
        self.run_detached(|store| async move {
            let reserves = change != SpaceChange::Punch && !inode.is_cached();
            if reserves {
                store.check_capacity(inode, &bytes, &own)?;
                for (index, home) in units(&bytes, &own) {
                    store.change_unit(Some(home), UnitId { inode, index }, change, &bytes).await?;
                }
                return Ok(());
            }
            if change == SpaceChange::Allocate {
                return Ok(());
            }
            for unit in store.units_from(&homes, inode, bytes.start / UNIT) {
                match unit? {
                    unit if unit.start() >= bytes.end => break,
                    unit => store.change_unit(None, unit, SpaceChange::Punch, &bytes).await?,
                }
            }
            Ok(())
        })
        .await
    }

    /// Changes the space of a unit; one that may be new needs its home.
    async fn change_unit(
        &self,
        home: Option<HomeId>,
        unit: UnitId,
        change: SpaceChange,
        bytes: &Range<u64>,
    ) -> Result<()> {
        self.ledger.wait_for_space().await?;
        let range = part(bytes, unit);
        if range.is_empty() {
            return Ok(());
        }
        let mut held = self.begin(unit).await?;
        if let Some(home) = home {
            held.set_home(home);
        }
        if change != SpaceChange::Allocate {
            held.punch(&range);
        }
        if change != SpaceChange::Punch {
            held.reserve(&blocks_of(&range))?;
        }
        held.commit()
    }

    /// Fails if the reservation exceeds what the view has left. Stops there, so that its time does not grow with the
    /// request.
    fn check_capacity(&self, inode: InodeId, bytes: &Range<u64>, own: &UnitsOfHomes) -> Result<()> {
        let view = inode.view();
        let left = self.accounting.lock().left(view);
        let mut wanted = 0;
        for (index, _) in units(bytes, own) {
            let unit = UnitId { inode, index };
            let blocks = blocks_of(&part(bytes, unit));
            let record = self.load(unit)?.unwrap_or_default();
            wanted += u64::from(record.unreserved(&blocks).len());
            if wanted > left {
                return Err(self.full(view, Shortage::View));
            }
        }
        Ok(())
    }

    /// Finds the first byte of data or hole at or after `start` in the file's units at `homes`, which are `own`. If the search finds none, it
    /// returns as error how far it got: the first byte of one of these units, or `u64::MAX`.
    pub fn seek(
        &self,
        homes: &HomeSet,
        inode: InodeId,
        sought: Sought,
        start: u64,
        own: &UnitsOfHomes,
    ) -> Result<std::result::Result<u64, u64>> {
        match sought {
            Sought::Data => self.seek_data(homes, inode, start),
            Sought::Hole => self.seek_hole(inode, start, own),
        }
    }

    fn seek_data(
        &self,
        homes: &HomeSet,
        inode: InodeId,
        start: u64,
    ) -> Result<std::result::Result<u64, u64>> {
        let mut units = self.units_from(homes, inode, start / UNIT);
        for unit in units.by_ref().take(EXAMINED_MAX) {
            let unit = unit?;
            let first = part(&(start..u64::MAX), unit).start;
            let data = data_of(unit, self.load(unit)?.unwrap_or_default());
            if let Some(data) = data.iter().find(|data| data.end > first) {
                return Ok(Ok(unit.start() + u64::from(data.start.max(first))));
            }
        }
        Ok(Err(units.next().transpose()?.map_or(u64::MAX, |unit| unit.start())))
    }

    fn seek_hole(
        &self,
        inode: InodeId,
        start: u64,
        own: &UnitsOfHomes,
    ) -> Result<std::result::Result<u64, u64>> {
        let mut all = units(&(start..u64::MAX), own);
        for (index, _) in all.by_ref().take(EXAMINED_MAX) {
            let unit = UnitId { inode, index };
            let rest = part(&(start..u64::MAX), unit);
            let data = self.load(unit)?.map_or_else(RangeSet::new, |record| data_of(unit, record));
            if let Some(hole) = data.gaps(rest).first() {
                return Ok(Ok(unit.start() + u64::from(hole.start)));
            }
        }
        Ok(Err(all.next().map_or(u64::MAX, |(index, _)| index * UNIT)))
    }

    /// Space of the file at `homes`, in bytes; of a cached file, that of its dirty bytes.
    pub fn usage(&self, homes: &HomeSet, inode: InodeId) -> Result<u64> {
        let of_dirty =
            |dirty: &RangeSet| dirty.iter().map(|range| blocks_of(&range)).collect::<RangeSet>().len();
        if inode.is_cached() {
            let dirty = self.dirty_units(homes, inode, usize::MAX)?;
            return Ok(dirty.iter().map(|dirty| u64::from(of_dirty(&dirty.ranges) * BLOCK)).sum());
        }
        let mut blocks = 0;
        for unit in self.units_from(homes, inode, 0) {
            blocks += self.load(unit?)?.map_or(0, |record| record.space());
        }
        Ok(blocks * u64::from(BLOCK))
    }
}
