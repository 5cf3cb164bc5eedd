//! Keys of units, and the log records of their changes.

use super::{DIRTY_FLAG, UnitRecord};
use crate::table::{Table, prefix};
use tameike_core::{Fault, HomeId, InodeId, Result, UnitId};

pub(super) const KEY_SIZE: usize = 17;

/// Key of a unit, or of its dirty mark.
pub(in crate::extent) fn key(prefix: u8, unit: UnitId) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_SIZE);
    key.push(prefix);
    key.extend_from_slice(&unit.inode.0.to_be_bytes());
    key.extend_from_slice(&unit.index.to_be_bytes());
    key
}

pub(in crate::extent) fn unit_of(key: &[u8]) -> Result<UnitId> {
    let (inode, index) = key
        .get(1..)
        .and_then(|rest| rest.split_first_chunk::<8>())
        .and_then(|(inode, rest)| Some((*inode, <[u8; 8]>::try_from(rest).ok()?)))
        .ok_or_else(|| Fault::io(format!("{key:?} is not a unit's key")))?;
    Ok(UnitId { inode: InodeId(u64::from_be_bytes(inode)), index: u64::from_be_bytes(index) })
}

/// Value of a dirty mark.
pub(in crate::extent) fn mark_of_home(home: HomeId) -> Vec<u8> {
    home.0.to_be_bytes().to_vec()
}

/// Home of the unit of a dirty mark; `None` if the mark is damaged.
pub(in crate::extent) fn home_of_mark(value: &[u8]) -> Option<HomeId> {
    value.try_into().ok().map(|home| HomeId(u16::from_be_bytes(home)))
}

pub(in crate::extent) fn log_body(unit: UnitId, record: Option<&UnitRecord>) -> Result<Vec<u8>> {
    let mut body = key(prefix::UNIT, unit);
    if let Some(record) = record {
        body.extend(record.encode()?);
    }
    Ok(body)
}

pub(in crate::extent) fn split_body(body: &[u8]) -> Result<(UnitId, &[u8])> {
    let (key, value) =
        body.split_at_checked(KEY_SIZE).ok_or_else(|| Fault::io("an extent record is too short"))?;
    Ok((unit_of(key)?, value))
}

/// Applies a log record to the table.
pub fn apply(body: &[u8], table: &mut dyn Table) -> Result<()> {
    let (unit, value) = split_body(body)?;
    if unit.inode.is_cached() {
        let mark = key(prefix::DIRTY, unit);
        let dirty = value.first() == Some(&DIRTY_FLAG);
        if dirty != table.get(&mark)?.is_some() {
            match UnitRecord::home_of(value).filter(|_| dirty) {
                Some(home) => table.put(mark, mark_of_home(home)),
                None => table.delete(mark),
            }
        }
    }
    let key = key(prefix::UNIT, unit);
    if value.is_empty() {
        table.delete(key)
    } else {
        table.put(key, value.to_vec())
    }
    Ok(())
}
