//! The key-value store below the ledger.

use std::collections::BTreeMap;
use tameike_core::Result;

/// Changes to keys: a value, or `None` for a removal.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An ordered map on a disk. Calls block.
pub trait Kv: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys from `start` (included) to `end` (excluded) with their values, ascending, at most `limit`.
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Makes all `changes`, atomically and durably.
    fn commit(&self, changes: &Changes) -> Result<()>;
    /// Size on the disk, in bytes.
    fn size_bytes(&self) -> Result<u64>;
}
