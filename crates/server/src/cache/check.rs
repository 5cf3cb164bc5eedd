//! Checks the journal of the cache view in the store of a stopped node.
//!
//! - Records decode.
//! - The path index matches the paths of the records.
//! - Each digest belongs to a record.
//! - Each file that this node coordinates and that has dirty bytes here has a record. Without one the path of the file is unknown.
//!
//! It does not compare the records with the shared file system; `recover` does.

use super::paths;
use super::record::{DIGEST, FILE, Record, decode_record, file_key};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::codec;
use tameike_core::wire::unit::UnitDigest;
use tameike_core::{InodeId, Result};
use tameike_store::check::{Dirty, Findings, Loss, Part};
use tameike_store::table::{ReadTable, for_each, prefix};

/// Length of a digest's key: two letters, inode, unit.
const DIGEST_KEY_SIZE: usize = 18;
/// Length of a record's key: two letters, inode.
const FILE_KEY_SIZE: usize = 10;

fn number_at(key: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(offset..offset + 8)?.try_into().ok()?))
}

fn inode_at(key: &[u8]) -> Option<InodeId> {
    number_at(key, 2).map(InodeId)
}

/// Path of a file relative to the shared directory, if the store knows it.
pub fn path(table: &dyn ReadTable, inode: InodeId) -> Option<String> {
    let value = table.get(&file_key(inode)).ok()??;
    match decode_record(&value) {
        Ok(record) => Some(record.shown_path()),
        Err(_) => path_by_index(table, inode),
    }
}

/// Path of a file whose record is damaged, from the path index.
fn path_by_index(table: &dyn ReadTable, inode: InodeId) -> Option<String> {
    let mut found = None;
    for_each(table, prefix::CACHE, |key, _| {
        if let Some((path, of)) = paths::split(key)
            && of == inode
        {
            found.get_or_insert_with(|| String::from_utf8_lossy(path).into_owned());
        }
        Ok(())
    })
    .ok()?;
    found
}

/// Checks the journal. `dirty` lists the files with dirty bytes in the store.
pub fn examine(table: &dyn ReadTable, dirty: &[Dirty], findings: &mut Findings) -> Result<()> {
    let mut journal = Examined { records: BTreeMap::new(), damaged: BTreeSet::new() };
    journal.read_records(table, findings)?;
    journal.examine_paths(table, findings)?;
    journal.examine_digests(table, findings)?;
    for dirty in dirty.iter().filter(|dirty| dirty.coordinated_here) {
        if !journal.records.contains_key(&dirty.inode) {
            journal.lose_units(table, *dirty, findings);
        }
    }
    Ok(())
}

struct Examined {
    records: BTreeMap<InodeId, Record>,
    damaged: BTreeSet<InodeId>,
}

impl Examined {
    fn read_records(&mut self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        for_each(table, prefix::CACHE, |key, value| {
            let inode = inode_at(key).filter(|_| key.len() == FILE_KEY_SIZE);
            match (key.get(1), inode) {
                (Some(&FILE), Some(inode)) => match decode_record(value) {
                    Ok(record) => {
                        self.records.insert(inode, record);
                    }
                    Err(fault) => {
                        self.damaged.insert(inode);
                        let path = path_by_index(table, inode);
                        let name = path.clone().unwrap_or_else(|| inode.to_string());
                        let message = format!(
                            "the record of {name} is damaged ({fault}): data that the job wrote to it and did not flush \
                             cannot be drained"
                        );
                        findings.lost(Part::Journal, message, vec![Loss::of(inode, path, None)]);
                        findings.remove_aside(key.to_vec(), value.to_vec());
                    }
                },
                (Some(&DIGEST), _) => {}
                (Some(&paths::PATH), _) if paths::split(key).is_some() => {}
                _ => {
                    findings.lost(
                        Part::Journal,
                        "a record is lost: its key is damaged",
                        vec![Loss::unknown()],
                    );
                    findings.remove_aside(key.to_vec(), value.to_vec());
                }
            }
            Ok(())
        })
    }

    /// Checks that the path index has a key for each path of each record, and no other keys.
    fn examine_paths(&self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let (mut stale, mut missing) = (0, 0);
        for_each(table, prefix::CACHE, |key, _| {
            if let Some((path, inode)) = paths::split(key) {
                let known = self.records.get(&inode);
                if !known.is_some_and(|record| record.paths.iter().any(|known| known.as_slice() == path)) {
                    stale += u64::from(!self.damaged.contains(&inode));
                    findings.remove(key.to_vec());
                }
            }
            Ok(())
        })?;
        for (&inode, record) in &self.records {
            for path in &record.paths {
                let key = paths::key(path, inode);
                if table.get(&key)?.is_none() {
                    missing += 1;
                    findings.set(key, Vec::new());
                }
            }
        }
        if stale + missing > 0 {
            let message = format!(
                "the path index lacks {missing} paths and has {stale} stale ones; it can be rebuilt from the \
                 records"
            );
            findings.wrong(Part::Journal, message);
        }
        Ok(())
    }

    /// Checks the digests. Without its digest, a flushed unit cannot be verified; its bytes are on the shared file system.
    fn examine_digests(&self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let mut orphaned = 0;
        let mut unverifiable = BTreeMap::<InodeId, Vec<Loss>>::new();
        for_each(table, prefix::CACHE, |key, value| {
            if key.get(1) != Some(&DIGEST) {
                return Ok(());
            }
            let inode = inode_at(key).filter(|_| key.len() == DIGEST_KEY_SIZE);
            let index = number_at(key, 10);
            let digest = codec::decode::<UnitDigest>(value).ok();
            let fits = digest.is_some_and(|digest| index == Some(digest.index));
            match inode.filter(|inode| self.records.contains_key(inode)) {
                Some(_) if fits => return Ok(()),
                Some(inode) => {
                    unverifiable.entry(inode).or_default().push(Loss::of(inode, path(table, inode), None))
                }
                None => orphaned += u64::from(!inode.is_some_and(|inode| self.damaged.contains(&inode))),
            }
            findings.remove(key.to_vec());
            Ok(())
        })?;
        for (inode, losses) in unverifiable {
            let name = path(table, inode).unwrap_or_else(|| inode.to_string());
            let count = losses.len();
            let message = format!(
                "{count} checksums of flushed units of {name} are damaged: the receipt cannot prove these units, \
                 which are on the shared file system"
            );
            findings.lost(Part::Journal, message, losses);
        }
        if orphaned > 0 {
            findings.wrong(Part::Journal, format!("{orphaned} checksums of flushed units belong to no file"));
        }
        Ok(())
    }

    /// Reports dirty bytes without a record as lost, and removes them.
    fn lose_units(&self, table: &dyn ReadTable, dirty: Dirty, findings: &mut Findings) {
        if !self.damaged.contains(&dirty.inode) {
            let path = path_by_index(table, dirty.inode);
            let name = path.clone().unwrap_or_else(|| format!("a file ({}) of unknown path", dirty.inode));
            let message = format!(
                "{} dirty bytes of {name} have no record in the journal: they cannot be flushed",
                dirty.bytes
            );
            findings.lost(Part::Journal, message, vec![Loss::of(dirty.inode, path, None)]);
        }
        findings.remove_units(dirty.inode);
    }
}

#[cfg(test)]
mod tests;
