//! Read-only queries of the metadata shard.

use super::key;
use super::record::{
    self, CallRecord, DirectoryRecord, InodeRecord, Intent, ShardRecord, Share, StepRecord, Truncation,
};
use crate::table::{ReadTable, prefix};
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{DirEntry, EntryName, Target};
use tameike_core::{DirOffset, Errno, Fault, FileKind, InodeId, OperationId, Result, View};

/// The record of an inode.
pub fn inode(table: &dyn ReadTable, inode: InodeId) -> Result<Option<InodeRecord>> {
    record::get(table, &key::inode(inode))
}

/// The target of a name.
pub fn entry(table: &dyn ReadTable, entry: &EntryName) -> Result<Option<Target>> {
    record::get(table, &key::entry(entry))
}

/// The home's record of a directory's children.
pub fn directory(table: &dyn ReadTable, dir: InodeId) -> Result<Option<DirectoryRecord>> {
    record::get(table, &key::directory(dir))
}

/// Content of an inline file, or target of a symbolic link.
pub fn content(table: &dyn ReadTable, inode: InodeId) -> Result<Vec<u8>> {
    Ok(table.get(&key::content(inode))?.unwrap_or_default())
}

/// Target of a symbolic link.
///
/// # Errors
/// `ENOENT`, or `EINVAL` if the inode is not a symbolic link.
pub fn symlink(table: &dyn ReadTable, link: InodeId) -> Result<Vec<u8>> {
    match inode(table, link)? {
        Some(record) if record.kind == FileKind::Symlink => content(table, link),
        Some(_) => Err(Errno::EINVAL.into()),
        None => Err(Errno::ENOENT.into()),
    }
}

/// Value of an extended attribute.
///
/// # Errors
/// `ENODATA` if the inode has none of this name.
pub fn xattr(table: &dyn ReadTable, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
    table.get(&key::xattr(inode, name))?.ok_or(Errno::ENODATA.into())
}

/// Names of all extended attributes, ascending.
pub fn xattr_names(table: &dyn ReadTable, inode: InodeId) -> Result<Vec<Vec<u8>>> {
    let (start, end) = key::xattrs(inode);
    let names = table.scan(&start, &end, usize::MAX)?;
    Ok(names.into_iter().map(|(key, _)| key[start.len()..].to_vec()).collect())
}

/// Entries of `dir` at this home after `after`, ascending, about `limit` of them, and whether these are the last.
/// Entries of one offset stay together.
pub fn entries(
    table: &dyn ReadTable,
    dir: InodeId,
    after: DirOffset,
    limit: usize,
) -> Result<(Vec<DirEntry>, bool)> {
    let Some(first) = after.0.checked_add(1) else { return Ok((Vec::new(), true)) };
    let (start, end) = (key::entries_from(dir, DirOffset(first)), key::entries_end(dir));
    let mut found = read_entries(table, &start, &end, limit + 1)?;
    if found.len() <= limit {
        return Ok((found, true));
    }
    let split_offset = found[limit].offset;
    if found[0].offset == split_offset {
        let next = key::entries_from(dir, DirOffset(split_offset.0 + 1));
        found = read_entries(table, &start, &next, usize::MAX)?;
    } else {
        found.retain(|entry| entry.offset != split_offset);
    }
    Ok((found, false))
}

fn read_entries(table: &dyn ReadTable, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<DirEntry>> {
    let found = table.scan(start, end, limit)?;
    found
        .into_iter()
        .map(|(key, value)| {
            let (offset, name) = key::offset_and_name(&key)
                .ok_or_else(|| Fault::io("the key of a directory entry is damaged"))?;
            Ok(DirEntry { offset, name: name.to_vec(), target: record::decode(&key, &value)? })
        })
        .collect()
}

/// Pending operations, by sequence number.
pub fn intents(table: &dyn ReadTable) -> Result<Vec<(u64, Intent)>> {
    numbered(table, prefix::INTENT)?
        .into_iter()
        .map(|(sequence, value)| Ok((sequence, record::decode(&[prefix::INTENT], &value)?)))
        .collect()
}

/// The result of a call that was executed before, perhaps at another primary.
pub fn call(table: &dyn ReadTable, call: &NumberedCall) -> Result<Option<CallRecord>> {
    record::get(table, &key::call(call, call.number.number))
}

/// A pending operation.
pub fn intent(table: &dyn ReadTable, sequence: u64) -> Result<Option<Intent>> {
    record::get(table, &key::intent(sequence))
}

/// The inode to which step `number` of an operation added a link that can be undone.
pub fn added_link(table: &dyn ReadTable, operation: OperationId, number: u32) -> Result<Option<InodeId>> {
    Ok(match record::get(table, &key::step(operation, number))? {
        Some(StepRecord::LinkAdded(inode)) => Some(inode),
        _ => None,
    })
}

/// Pending truncation of a file's units; of an inline file, one for when it is removed.
pub fn truncation(table: &dyn ReadTable, inode: InodeId) -> Result<Option<Truncation>> {
    record::get(table, &key::truncation(inode))
}

/// Files whose units must be truncated now.
pub fn truncations(table: &dyn ReadTable) -> Result<Vec<(InodeId, Truncation)>> {
    let mut pending = Vec::new();
    for (number, value) in numbered(table, prefix::TRUNCATION)? {
        if inode(table, InodeId(number))?.is_none_or(|record| !record.inline) {
            pending.push((InodeId(number), record::decode(&[prefix::TRUNCATION], &value)?));
        }
    }
    Ok(pending)
}

/// Inodes without links that were open.
pub fn orphans(table: &dyn ReadTable) -> Result<Vec<InodeId>> {
    Ok(numbered(table, prefix::ORPHAN)?.into_iter().map(|(inode, _)| InodeId(inode)).collect())
}

/// Number of inodes read at once by [`count_inodes`].
const COUNT_BATCH: usize = 1024;

/// Number of inodes of each view.
pub fn count_inodes(table: &dyn ReadTable) -> Result<[u64; View::ALL.len()]> {
    let (mut counts, (mut start, end)) = ([0; View::ALL.len()], key::all(prefix::INODE));
    loop {
        let found = table.scan(&start, &end, COUNT_BATCH)?;
        for (key, _) in &found {
            let number =
                key::number(key).ok_or_else(|| Fault::io("the key of an inode's record is damaged"))?;
            counts[InodeId(number).view().index()] += 1;
        }
        let Some((last, _)) = found.into_iter().last() else { return Ok(counts) };
        start = [&last[..], &[0]].concat();
    }
}

fn numbered(table: &dyn ReadTable, prefix: u8) -> Result<Vec<(u64, Vec<u8>)>> {
    let (start, end) = key::all(prefix);
    let found = table.scan(&start, &end, usize::MAX)?;
    found
        .into_iter()
        .map(|(key, value)| {
            let number =
                key::number(&key).ok_or_else(|| Fault::io("the key of a metadata record is damaged"))?;
            Ok((number, value))
        })
        .collect()
}

/// Returns true if this home knows that a directory without a record of children here was removed. A directory that
/// never had an entry here has no record either; then only the home of its inode knows.
pub(super) fn is_gone(table: &dyn ReadTable, dir: InodeId) -> Result<bool> {
    if let Some(record) = inode(table, dir)? {
        return Ok(record.links == 0);
    }
    Ok(share(table)?.keeps(dir))
}

/// The part of the names and inodes that this home has.
pub(super) fn share(table: &dyn ReadTable) -> Result<Share> {
    let shard: Option<ShardRecord> = record::get(table, &key::shard())?;
    shard.map(|shard| shard.share).ok_or_else(|| Fault::io("a home without a record of its start was used"))
}

/// Returns true if this home knows that the directory was removed or is being removed.
pub fn is_removed(table: &dyn ReadTable, dir: InodeId) -> Result<bool> {
    match directory(table, dir)? {
        Some(children) => Ok(children.sealed.is_some()),
        None => is_gone(table, dir),
    }
}
