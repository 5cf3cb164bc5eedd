//! Interface of the key-value table that the state machines of a node use.

mod home;

pub use home::{HomeTable, homes, key_of_home};

use tameike_core::Result;

/// An ordered map from bytes to bytes.
///
/// Each kind of record has a key prefix of one byte, listed in [`prefix`].
pub trait ReadTable {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys from `start` (included) to `end` (excluded) with their values, ascending, at most `limit`.
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
}

/// A table that can be changed.
pub trait Table: ReadTable {
    /// Sets a key.
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>);
    /// Removes a key, if it exists.
    fn delete(&mut self, key: Vec<u8>);
}

impl<T: ReadTable + ?Sized> ReadTable for &T {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        (**self).get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        (**self).scan(start, end, limit)
    }
}

impl<T: Table + ?Sized> ReadTable for &mut T {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        (**self).get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        (**self).scan(start, end, limit)
    }
}

impl<T: Table + ?Sized> Table for &mut T {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        (**self).put(key, value);
    }

    fn delete(&mut self, key: Vec<u8>) {
        (**self).delete(key);
    }
}

/// Number of records that [`for_each`] reads at once.
const BATCH: usize = 1024;

/// Calls `show` for all records of a prefix, ascending.
pub fn for_each(
    table: &dyn ReadTable,
    prefix: u8,
    mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let (mut start, end) = (vec![prefix], [prefix + 1]);
    loop {
        let found = table.scan(&start, &end, BATCH)?;
        for (key, value) in &found {
            show(key, value)?;
        }
        match found.into_iter().last() {
            Some((last, _)) => start = [&last[..], &[0]].concat(),
            None => return Ok(()),
        }
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod memory;

/// First bytes of keys. Numbers in keys are big-endian, so that keys sort as the numbers do; values are
/// `postcard` of the named type unless said otherwise.
///
/// Names and inodes are in the table of their home ([`HomeTable`]): before these prefixes, their keys have [`prefix::HOME`] and the home.
pub mod prefix {
    /// Records of names and inodes of a home: home (2 bytes), then a key of one of the kinds up to [`CALLS_FINISHED`].
    pub const HOME: u8 = b'h';
    /// State of the home's names. Value: `meta::record::ShardRecord`.
    pub const SHARD: u8 = b'm';
    /// Inodes: inode number (8 bytes). Value: `meta::record::InodeRecord`.
    pub const INODE: u8 = b'i';
    /// Inline contents of files, and targets of symbolic links: inode number (8). Value: the bytes.
    pub const CONTENT: u8 = b'd';
    /// Extended attributes: inode number (8), name. Value: the bytes.
    pub const XATTR: u8 = b'x';
    /// Directory entries: directory (8), offset (8), name. Value: `wire::meta::Target`.
    pub const ENTRY: u8 = b'e';
    /// State of a directory's children at a home: directory (8). Value: `meta::record::DirectoryRecord`.
    pub const DIRECTORY: u8 = b'c';
    /// Inodes without links that a node has open: inode number (8). Value: empty.
    pub const ORPHAN: u8 = b'p';
    /// Files whose units must be truncated on their homes: inode number (8). Value: `meta::record::Truncation`.
    pub const TRUNCATION: u8 = b't';
    /// Operations across homes that this home coordinates: sequence number (8).
    /// Value: `meta::record::Intent`.
    pub const INTENT: u8 = b'o';
    /// Applied steps of other homes' operations: coordinator (2), sequence number (8), step (4).
    /// Value: `meta::record::StepRecord`.
    pub const STEP: u8 = b's';
    /// Last finished operation of a coordinator: coordinator (2). Value: sequence number.
    pub const FINISHED: u8 = b'f';
    /// The lock of the tree's shape. Value: `OperationId` of its holder.
    pub const TREE_LOCK: u8 = b'l';
    /// Results of calls that may be repeated at another primary: node (4) and incarnation (8) of the caller, number (8).
    /// Value: `meta::record::CallRecord`.
    pub const CALL: u8 = b'a';
    /// Number of the first call of a caller that may not have ended: node (4), incarnation (8). Value: the number.
    pub const CALLS_FINISHED: u8 = b'g';
    /// Last log record of a home that has replicas: home (2). Value: its number (8) and chain (4), big-endian.
    pub const LAST_RECORD: u8 = b'r';
    /// Unit records (the extent index): inode number, unit.
    pub const UNIT: u8 = b'u';
    /// Marks of units with dirty bytes: inode number, unit.
    pub const DIRTY: u8 = b'y';
    /// Cache records: inode number.
    pub const CACHE: u8 = b'k';
}
