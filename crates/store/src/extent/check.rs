//! Check of the extent index and of the data that it names, in a stopped store.
//!
//! The check verifies that
//!
//! - each record decodes
//! - each block is within the extents file, belongs to one unit, and matches its checksum
//! - the marks of dirty units match the records
//! - the file of each unit exists
//!
//! Free blocks are those that no record names; no second list exists.

mod damage;
mod device;

pub use device::Device;
pub(crate) use device::Extents;

use super::record::{BLOCK, UnitRecord, bytes_of, key, mark_of_home, unit_of};
use crate::check::{Aside, Dirty, Findings, Loss, Part};
use crate::meta::check::Names;
use crate::table::{ReadTable, for_each, prefix};
use damage::Damage;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tameike_core::limits::{FILE_SIZE_MAX, UNIT_SIZE};
use tameike_core::{Fault, InodeId, Result, UnitId};

/// Receives the number of bytes verified so far, and the total.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64);
/// Returns the path of a file, if this node knows it.
pub(crate) type NameOf<'a> = &'a dyn Fn(InodeId) -> Option<String>;

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) units: u64,
    pub(crate) bytes: u64,
    pub(crate) dirty: Vec<Dirty>,
}

struct Index<'a> {
    extents: &'a Extents,
    table: &'a dyn ReadTable,
    names: &'a Names,
    name_of: NameOf<'a>,
    /// Blocks of the device in the order of the index: first block, number of blocks, owner.
    owners: Vec<(u64, u64, UnitId)>,
    /// Units whose records this check changes.
    touched: BTreeSet<UnitId>,
    dirty: BTreeMap<InodeId, u64>,
    units: u64,
}

impl Extents {
    /// Checks the index. With `progress` it verifies the checksums of all data, else only the records.
    pub(crate) fn examine(
        &self,
        table: &dyn ReadTable,
        names: &Names,
        name_of: NameOf<'_>,
        progress: Option<Progress<'_>>,
        findings: &mut Findings,
    ) -> Result<Found> {
        let mut index = Index {
            extents: self,
            table,
            names,
            name_of,
            owners: Vec::new(),
            touched: BTreeSet::new(),
            dirty: BTreeMap::new(),
            units: 0,
        };
        index.read_records(findings)?;
        index.owners.sort_unstable();
        let bytes = match progress {
            Some(progress) => index.compare(progress, findings)?,
            None => 0,
        };
        index.examine_marks(findings)?;
        let dirty = index.dirty.into_iter();
        let dirty = dirty.map(|(inode, bytes)| Dirty { inode, bytes, coordinated_here: false }).collect();
        Ok(Found { units: index.units, bytes, dirty })
    }
}

/// Decodes the unit of a key; fails if it is beyond the largest file.
fn unit_at(key: &[u8]) -> Result<UnitId> {
    let unit = unit_of(key)?;
    if unit.index > FILE_SIZE_MAX / UNIT_SIZE as u64 {
        return Err(Fault::io(format!("no file has a unit {}", unit.index)));
    }
    Ok(unit)
}

/// Stores a record with its mark.
fn put(unit: UnitId, record: &UnitRecord, findings: &mut Findings) -> Result<()> {
    match record.held.is_empty() {
        true => findings.remove(key(prefix::UNIT, unit)),
        false => findings.set(key(prefix::UNIT, unit), record.encode()?),
    }
    if unit.inode.is_cached() {
        let mark = key(prefix::DIRTY, unit);
        match record.is_clean() {
            true => findings.remove(mark),
            false => findings.set(mark, mark_of_home(record.home)),
        }
    }
    Ok(())
}

impl Index<'_> {
    fn display_name(&self, inode: InodeId) -> String {
        (self.name_of)(inode).unwrap_or_else(|| format!("{inode} (its name is not known on this node)"))
    }

    /// First pass: decodes all records and collects the owners of blocks.
    fn read_records(&mut self, findings: &mut Findings) -> Result<()> {
        let mut leaks = BTreeMap::<InodeId, (u64, u64)>::new();
        for_each(self.table, prefix::UNIT, |key_bytes, value| {
            let unit = match unit_at(key_bytes) {
                Ok(unit) => unit,
                Err(fault) => {
                    findings.lost(
                        Part::Extents,
                        format!("a key of the index is damaged: {fault}"),
                        vec![Loss::unknown()],
                    );
                    findings.remove_aside(key_bytes.to_vec(), value.to_vec());
                    return Ok(());
                }
            };
            let record = match UnitRecord::decode(unit, value) {
                Ok(record) => record,
                Err(fault) => return self.drop_record(unit, value, &fault, findings),
            };
            if !unit.inode.is_cached() && !self.names.expects_units(unit.inode) {
                let leak = leaks.entry(unit.inode).or_default();
                *leak = (leak.0 + 1, leak.1 + record.block_count() * u64::from(BLOCK));
                return self.drop_leak(unit, &record, findings);
            }
            if findings.removes_units_of(unit.inode) {
                return self.drop_leak(unit, &record, findings);
            }
            self.units += 1;
            if unit.inode.is_cached() && !record.is_clean() {
                *self.dirty.entry(unit.inode).or_default() += u64::from(record.dirty.len());
            }
            let blocks = record.extents.iter().map(|extent| extent.device_blocks());
            self.owners.extend(blocks.map(|blocks| (blocks.start, blocks.end - blocks.start, unit)));
            Ok(())
        })?;
        findings.end_unit_removal();
        for (inode, (units, bytes)) in leaks {
            let message = format!(
                "{bytes} bytes in {units} units belong to {inode}, which no longer exists: their space is leaked"
            );
            findings.wrong(Part::Extents, message);
        }
        Ok(())
    }

    fn drop_record(
        &mut self,
        unit: UnitId,
        value: &[u8],
        fault: &Fault,
        findings: &mut Findings,
    ) -> Result<()> {
        let mark = key(prefix::DIRTY, unit);
        let is_dirty = !unit.inode.is_cached() || self.table.get(&mark)?.is_some();
        let name = self.display_name(unit.inode);
        if is_dirty {
            let bytes = unit.start()..unit.start() + UNIT_SIZE as u64;
            let message = format!(
                "{fault}: its data of {name}, within bytes {} to {}, is lost",
                bytes.start,
                bytes.end - 1
            );
            let loss = Loss::of(unit.inode, (self.name_of)(unit.inode), Some(bytes));
            findings.lost(Part::Extents, message, vec![loss]);
        } else {
            let message = format!("{fault}: its bytes of {name} were clean, the shared file system has them");
            findings.wrong(Part::Extents, message);
        }
        findings.remove_aside(key(prefix::UNIT, unit), value.to_vec());
        if unit.inode.is_cached() {
            findings.remove(mark);
        }
        self.touched.insert(unit);
        Ok(())
    }

    fn drop_leak(&mut self, unit: UnitId, record: &UnitRecord, findings: &mut Findings) -> Result<()> {
        for extent in &record.extents {
            let (start, blocks) = (bytes_of(&extent.blocks()).start, extent.device_blocks());
            let size = u64::from(BLOCK);
            findings.save(Aside::Bytes { unit, start, device: blocks.start * size..blocks.end * size });
        }
        put(unit, &UnitRecord::default(), findings)?;
        self.touched.insert(unit);
        Ok(())
    }

    /// Blocks that several units name.
    fn contested(&self) -> BTreeSet<u64> {
        let mut contested = BTreeSet::new();
        let mut end = 0;
        for &(first, count, _) in &self.owners {
            contested.extend(first..end.min(first + count));
            end = end.max(first + count);
        }
        contested
    }

    /// Blocks that no unit names, ascending.
    fn free_blocks(&self) -> impl Iterator<Item = u64> + use<> {
        let mut gaps: Vec<Range<u64>> = Vec::new();
        let mut end = 0;
        for &(first, count, _) in &self.owners {
            gaps.extend((end < first).then_some(end..first));
            end = end.max(first + count);
        }
        gaps.push(end..self.extents.blocks().max(end));
        let blocks = self.extents.blocks();
        gaps.into_iter().flatten().take_while(move |block| *block < blocks)
    }

    /// Second pass: verifies that every block is within the device, of one unit, and matches its checksum.
    fn compare(&mut self, progress: Progress<'_>, findings: &mut Findings) -> Result<u64> {
        let contested = self.contested();
        let mut free = self.free_blocks();
        let mut claimed = BTreeSet::new();
        let total = self.owners.iter().map(|(_, count, _)| count * u64::from(BLOCK)).sum();
        let mut done = 0;
        progress(done, total);
        let (table, extents) = (self.table, self.extents);
        for_each(table, prefix::UNIT, |key, value| {
            let Ok(unit) = unit_at(key) else { return Ok(()) };
            if self.touched.contains(&unit) {
                return Ok(());
            }
            let mut record = UnitRecord::decode(unit, value)?;
            let mut damage = Damage::default();
            for extent in &record.extents {
                let bad = extent.bad_blocks(&extents.read(&extent.device_blocks())?);
                for block in extent.blocks() {
                    let device = extent.device + u64::from(block - extent.first);
                    if bad.contains(&block) {
                        damage.bad.insert(block, device);
                    } else if contested.contains(&device) && !claimed.insert(device) {
                        damage.shared.insert(block, device);
                    }
                }
                done += u64::from(extent.count()) * u64::from(BLOCK);
            }
            progress(done, total);
            if !damage.is_none() {
                self.touched.insert(unit);
                damage.report(
                    unit,
                    &record,
                    &self.display_name(unit.inode),
                    (self.name_of)(unit.inode),
                    findings,
                );
                damage.repair(unit, &mut record, &mut free, findings)?;
                put(unit, &record, findings)?;
            }
            Ok(())
        })?;
        Ok(done)
    }

    /// Verifies that the marks of units with dirty bytes match the records.
    fn examine_marks(&self, findings: &mut Findings) -> Result<()> {
        let mut wrong = 0;
        for_each(self.table, prefix::DIRTY, |mark, home| {
            let unit = unit_at(mark).ok();
            if unit.is_some_and(|unit| self.touched.contains(&unit)) {
                return Ok(());
            }
            let value = match unit {
                Some(unit) => self.table.get(&key(prefix::UNIT, unit))?,
                None => None,
            };
            let marked = value.filter(|value| UnitRecord::is_marked_dirty(value));
            let expected = marked.and_then(|value| UnitRecord::home_of(&value)).map(mark_of_home);
            if expected.is_none_or(|expected| expected != home) {
                wrong += 1;
                findings.remove(mark.to_vec());
            }
            Ok(())
        })?;
        for_each(self.table, prefix::UNIT, |key_bytes, value| {
            let unit =
                unit_at(key_bytes).ok().filter(|unit| unit.inode.is_cached() && !self.touched.contains(unit));
            let Some(unit) = unit.filter(|_| UnitRecord::is_marked_dirty(value)) else { return Ok(()) };
            let (mark, home) = (key(prefix::DIRTY, unit), UnitRecord::home_of(value));
            let Some(home) = home.map(mark_of_home) else { return Ok(()) };
            if self.table.get(&mark)?.is_none_or(|found| found != home) {
                wrong += 1;
                findings.set(mark, home);
            }
            Ok(())
        })?;
        if wrong > 0 {
            let message = format!(
                "{wrong} marks of dirty units are missing or stale; they can be derived from the records"
            );
            findings.wrong(Part::Extents, message);
        }
        Ok(())
    }
}
