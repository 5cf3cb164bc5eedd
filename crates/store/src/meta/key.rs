//! Keys of the metadata shard's records; [`crate::table::prefix`] describes each.

use crate::table::prefix;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::EntryName;
use tameike_core::{DirOffset, HomeId, InodeId, OperationId};

fn numbered(prefix: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(prefix);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The end of the range of all keys that begin with `start`.
fn after(mut start: Vec<u8>) -> Vec<u8> {
    while let Some(last) = start.pop() {
        if last < u8::MAX {
            start.push(last + 1);
            break;
        }
    }
    start
}

pub(super) fn shard() -> Vec<u8> {
    vec![prefix::SHARD]
}

pub(super) fn tree_lock() -> Vec<u8> {
    vec![prefix::TREE_LOCK]
}

pub(super) fn inode(inode: InodeId) -> Vec<u8> {
    numbered(prefix::INODE, inode.0)
}

pub(super) fn content(inode: InodeId) -> Vec<u8> {
    numbered(prefix::CONTENT, inode.0)
}

pub(super) fn directory(dir: InodeId) -> Vec<u8> {
    numbered(prefix::DIRECTORY, dir.0)
}

pub(super) fn orphan(inode: InodeId) -> Vec<u8> {
    numbered(prefix::ORPHAN, inode.0)
}

pub(super) fn truncation(inode: InodeId) -> Vec<u8> {
    numbered(prefix::TRUNCATION, inode.0)
}

pub(super) fn intent(sequence: u64) -> Vec<u8> {
    numbered(prefix::INTENT, sequence)
}

fn caller(prefix: u8, call: &NumberedCall) -> Vec<u8> {
    let mut key = vec![prefix];
    key.extend_from_slice(&call.node.0.to_be_bytes());
    key.extend_from_slice(&call.incarnation.to_be_bytes());
    key
}

/// The call with a number, of the caller of `call`.
pub(super) fn call(call: &NumberedCall, number: u64) -> Vec<u8> {
    let mut key = caller(prefix::CALL, call);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(super) fn calls_finished(call: &NumberedCall) -> Vec<u8> {
    caller(prefix::CALLS_FINISHED, call)
}

/// The range of all records of one prefix.
pub(super) fn all(prefix: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![prefix], vec![prefix + 1])
}

/// The number in a key that consists of a prefix and a number.
pub(super) fn number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}

pub(super) fn xattr(inode: InodeId, name: &[u8]) -> Vec<u8> {
    let mut key = numbered(prefix::XATTR, inode.0);
    key.extend_from_slice(name);
    key
}

pub(super) fn xattrs(inode: InodeId) -> (Vec<u8>, Vec<u8>) {
    let start = numbered(prefix::XATTR, inode.0);
    (start.clone(), after(start))
}

pub(super) fn entry(entry: &EntryName) -> Vec<u8> {
    let mut key = entries_from(entry.dir, entry.offset());
    key.extend_from_slice(&entry.name);
    key
}

/// Sorts before every entry of `dir` at `offset`, and after every entry at a smaller offset.
pub(super) fn entries_from(dir: InodeId, offset: DirOffset) -> Vec<u8> {
    let mut key = numbered(prefix::ENTRY, dir.0);
    key.extend_from_slice(&offset.0.to_be_bytes());
    key
}

pub(super) fn entries_end(dir: InodeId) -> Vec<u8> {
    after(numbered(prefix::ENTRY, dir.0))
}

/// Offset and name in the key of an entry.
pub(super) fn offset_and_name(key: &[u8]) -> Option<(DirOffset, &[u8])> {
    let offset = u64::from_be_bytes(key.get(9..17)?.try_into().ok()?);
    Some((DirOffset(offset), &key[17..]))
}

pub(super) fn step(operation: OperationId, number: u32) -> Vec<u8> {
    let mut key = first_step(operation.home, operation.sequence);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Start of the steps of a coordinator's operations from number `sequence` on.
pub(super) fn first_step(coordinator: HomeId, sequence: u64) -> Vec<u8> {
    let mut key = vec![prefix::STEP];
    key.extend_from_slice(&coordinator.0.to_be_bytes());
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}

pub(super) fn finished(coordinator: HomeId) -> Vec<u8> {
    let mut key = vec![prefix::FINISHED];
    key.extend_from_slice(&coordinator.0.to_be_bytes());
    key
}
