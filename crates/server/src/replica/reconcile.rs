//! When a home gets another primary, its other backups make clean what is clean there.
//!
//! At the end of a flush, the backups make bytes clean one after the other, and the primary last. If it fails meanwhile, one backup may become
//! the primary with clean bytes, while another one still has them as dirty. Later, that one could write them over newer bytes of the shared
//! file system.

use super::backup::BackupService;
use super::{Replicas, may_be_repeated};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::replica::{DIRTY_UNITS_MAX, ReplicaRequest};
use tameike_core::{Errno, Fault, HomeId, HomeSet, NodeId, Result, UnitId};
use tameike_store::ExtentStore;

/// The units of cached files at a home that have dirty bytes.
fn dirty_units(extents: &ExtentStore, home: HomeId) -> Result<BTreeMap<UnitId, RangeSet>> {
    let of_home = HomeSet::from_iter([home]);
    let mut dirty = BTreeMap::new();
    for unit in extents.units_of(&of_home) {
        let unit = unit?;
        let ranges = if unit.inode.is_cached() { extents.dirty_of(unit)? } else { RangeSet::default() };
        if !ranges.is_empty() {
            dirty.insert(unit, ranges);
        }
    }
    Ok(dirty)
}

impl Replicas {
    /// Has the backups of a home that this node takes over make clean what is clean here. No unit of the home changes meanwhile. Returns the
    /// backups that cannot, whose copies are of no use.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn reconcile(&self, home: HomeId, extents: &ExtentStore) -> Result<Vec<NodeId>> {
        let mut useless = Vec::new();
        if self.parts.cluster.map().backups(home).is_empty() {
            return Ok(useless);
        }
        let units: Vec<_> = dirty_units(extents, home)?.into_iter().collect();
        let ranges: usize = units.iter().map(|(_, ranges)| ranges.iter().count()).sum();
        let fits = units.len().max(ranges) <= DIRTY_UNITS_MAX;
        let mut reconciled = BTreeSet::new();
        loop {
            let map = self.parts.cluster.map();
            let left = |backup: &&_| !reconciled.contains(*backup);
            let Some(&backup) = map.backups(home).iter().find(left) else { return Ok(useless) };
            if map.primary(home) != self.parts.node {
                return Ok(useless);
            }
            let request = ReplicaRequest::OnlyDirty { home, units: units.clone() };
            let answer = match fits {
                true => self.ask(&map, backup, request, None).await.map(drop),
                false => Err(Fault::new(Errno::EFBIG, "too many dirty units for a message")),
            };
            match answer {
                Err(fault) if may_be_repeated(&fault) => self.wait_for_backup(&map, backup, &fault).await,
                answer => {
                    if let Err(fault) = answer {
                        log::warn!("the copy of {home} on {backup} is of no use: {fault}");
                        useless.push(backup);
                    }
                    reconciled.insert(backup);
                }
            }
        }
    }
}

impl BackupService {
    /// Drops dirty bytes of cached files at a home but these, since the shared file system has them.
    pub(super) async fn clean_others(&self, home: HomeId, units: Vec<(UnitId, RangeSet)>) -> Result<()> {
        let (extents, units) = (self.extents(), BTreeMap::from_iter(units));
        let mut cleaned = BTreeSet::new();
        for (unit, dirty) in dirty_units(extents, home)? {
            let kept = units.get(&unit).cloned().unwrap_or_default();
            if dirty.iter().any(|range| !kept.gaps(range.clone()).is_empty()) {
                extents.clean_all_but(unit, kept, tameike_core::Generation(0)).await?;
                cleaned.insert(unit.inode);
            }
        }
        for inode in cleaned {
            // Their generation is not known.
            extents.drop_clean(inode).await?;
        }
        Ok(())
    }
}
