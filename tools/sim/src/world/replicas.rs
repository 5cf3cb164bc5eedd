//! Compares the replicas of homes.

use super::World;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::{Cluster, Fault, Generation, HomeId, HomeSet, NodeId, Result, UnitId};
use tameike_io::Pool;
use tameike_store::ledger::{LastRecord, last_record};
use tameike_store::table::{HomeTable, ReadTable, prefix};
use tameike_store::{ExtentStore, Ledger};

/// Comparisons of a home, and the pause after each: changes are on all replicas long before.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// What a node has of a home: records, the number of its last log record, and units, with their bytes that must be on all replicas.
#[derive(PartialEq, Eq)]
struct Copy {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    last: LastRecord,
    units: BTreeMap<UnitId, (RangeSet, Vec<u8>)>,
}

impl Copy {
    /// Describes the first difference from the copy of a backup.
    fn difference(&self, other: &Self) -> String {
        let all = self.records.keys().chain(other.records.keys());
        let record = all.map(|key| (key, self.records.get(key), other.records.get(key)));
        let record = record.into_iter().find(|(_, own, other)| own != other);
        let all = self.units.keys().chain(other.units.keys());
        let unit = all.map(|unit| (unit, self.units.get(unit), other.units.get(unit)));
        let ranges = |copy: Option<&(RangeSet, Vec<u8>)>| copy.map(|(ranges, _)| ranges.clone());
        let unit = unit.into_iter().find(|(_, own, other)| own != other);
        let unit = unit.map(|(unit, own, other)| (unit, ranges(own), ranges(other)));
        format!("records {:?} and {:?}, record {record:?}, unit {unit:?}", self.last, other.last)
    }
}

/// The store of a running node.
struct Stored {
    ledger: Arc<Ledger>,
    extents: Arc<ExtentStore>,
    pool: Pool,
}

impl World {
    /// Compares the copies of all homes, with the units if `units`. Returns the difference, if there is one.
    ///
    /// # Errors
    /// A node is down, or its store is damaged.
    pub async fn compare_copies(&self, units: bool) -> Result<Option<String>> {
        let map = self.map();
        for home in (0..map.count()).map(|home| HomeId(home as u16)) {
            let primary = map.primary(home);
            for &backup in map.backups(home) {
                if let Some(difference) = self.compare_copy(home, (primary, backup), units).await? {
                    return Ok(Some(format!("{home} differs between {primary} and {backup}: {difference}")));
                }
            }
        }
        Ok(None)
    }

    /// Compares two copies of a home; again if they differ, since a backup may not have a change yet.
    async fn compare_copy(
        &self,
        home: HomeId,
        (primary, backup): (NodeId, NodeId),
        units: bool,
    ) -> Result<Option<String>> {
        let mut difference = None;
        for _ in 0..ATTEMPTS {
            let own = self.copy(primary, home, units).await?;
            let other = self.copy(backup, home, units).await?;
            if own == other {
                return Ok(None);
            }
            difference = Some(own.difference(&other));
            self.runtime().sleep(PAUSE).await;
        }
        Ok(difference)
    }

    async fn copy(&self, node: NodeId, home: HomeId, with_units: bool) -> Result<Copy> {
        let found = self.with(node.0 as usize, |node, _, memory| {
            let services = node.services()?;
            let ledger = services.ledger.clone();
            Some(Stored { ledger, extents: services.extents.clone(), pool: memory.reads.clone() })
        });
        let down = || Fault::io(format!("{node} is down"));
        let Stored { ledger, extents, pool } = found.flatten().ok_or_else(down)?;
        let (records, last) = ledger.read(|table| {
            let names = HomeTable::new(home, table).scan(&[0], &[0xff], usize::MAX)?;
            let cached = table.scan(&[prefix::CACHE], &[prefix::CACHE + 1], usize::MAX)?;
            let cached =
                cached.into_iter().filter(|(key, _)| home_of_cached(&self.cluster, key) == Some(home));
            Ok((names.into_iter().chain(cached).collect::<BTreeMap<_, _>>(), last_record(table, home)?))
        })?;
        let mut units = BTreeMap::new();
        let homes = HomeSet::from_iter(with_units.then_some(home));
        for unit in extents.units_of(&homes).collect::<Result<Vec<_>>>()? {
            let whole = 0..UNIT_SIZE as u32;
            let (frame, held) = extents.read(unit, whole.clone(), pool.take().await, Generation(0)).await;
            let held = held?;
            let kept = match (unit.inode.is_cached(), held.sums) {
                (true, _) => extents.dirty_of(unit)?,
                (false, Some(_)) => whole.into(),
                (false, None) => held.ranges,
            };
            let bytes =
                kept.iter().flat_map(|range| frame[range.start as usize..range.end as usize].to_vec());
            let bytes = bytes.collect();
            if !kept.is_empty() {
                units.insert(unit, (kept, bytes));
            }
        }
        Ok(Copy { records, last, units })
    }
}

/// The home of a record of a cached file.
fn home_of_cached(cluster: &Cluster, key: &[u8]) -> Option<HomeId> {
    let inode = match key.get(1)? {
        b'p' => key.last_chunk()?,
        _ => key.get(2..)?.first_chunk()?,
    };
    Some(cluster.inode_home(tameike_core::InodeId(u64::from_be_bytes(*inode))))
}
