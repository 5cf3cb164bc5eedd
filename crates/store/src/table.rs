//! The table of keys on which the state machines of a node work.

use tameike_core::Result;

/// An ordered map from bytes to bytes.
///
/// Each kind of record has a key prefix of one byte, listed in [`prefix`].
pub trait Table {
    /// The value of a key.
    ///
    /// # Errors
    /// `EIO` when the store below fails.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys from `start` (included) to `end` (excluded) with their values, ascending, at most `limit`.
    ///
    /// # Errors
    /// `EIO` when the store below fails.
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Sets a key.
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>);
    /// Removes a key, if it is there.
    fn delete(&mut self, key: Vec<u8>);
}

/// First bytes of keys.
pub mod prefix {
    /// Counters and other state of the shard itself.
    pub const SHARD: u8 = b'm';
    /// Inode records: inode number.
    pub const INODE: u8 = b'i';
    /// Inline contents: inode number.
    pub const CONTENT: u8 = b'd';
    /// Extended attributes: inode number, name.
    pub const XATTR: u8 = b'x';
    /// Directory entries: directory, offset, name.
    pub const ENTRY: u8 = b'e';
    /// Directories' times and counts: directory.
    pub const DIRECTORY: u8 = b'c';
    /// Operations over several nodes that this node coordinates: operation.
    pub const INTENT: u8 = b'o';
    /// Results of steps of other nodes' operations: operation, step.
    pub const STEP: u8 = b's';
    /// Unit records (the extent index): inode number, unit.
    pub const UNIT: u8 = b'u';
    /// Marks of units with dirty bytes: inode number, unit.
    pub const DIRTY: u8 = b'y';
    /// Cache records: inode number.
    pub const CACHE: u8 = b'k';
}
