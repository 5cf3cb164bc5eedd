//! The key-value store below the ledger.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tameike_core::{Fault, Result};
use tameike_io::disk::memory::{Fate, Faults};

/// Changes to keys: a value, or `None` for a removal.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An ordered map on a disk. Calls block.
pub trait Kv: Send + Sync {
    /// The value of a key.
    ///
    /// # Errors
    /// `EIO` when the disk fails or its content is damaged.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys from `start` (included) to `end` (excluded) with their values, ascending, at most `limit`.
    ///
    /// # Errors
    /// `EIO` when the disk fails or its content is damaged.
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Makes all `changes`, atomically and safe against power loss.
    ///
    /// # Errors
    /// What the disk says; then either all changes are made or none.
    fn commit(&self, changes: &Changes) -> Result<()>;
    /// Size on the disk, in bytes.
    ///
    /// # Errors
    /// `EIO` when the disk fails.
    fn size_bytes(&self) -> Result<u64>;
}

/// A key-value store in memory, for tests and simulated clusters.
#[derive(Clone, Default)]
pub struct MemoryKv {
    map: Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
    faults: Faults,
}

impl MemoryKv {
    /// An empty store whose commits fail with `faults`.
    pub fn new(faults: Faults) -> Self {
        Self { map: Arc::default(), faults }
    }
}

impl Kv for MemoryKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.map.lock().get(key).cloned())
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let map = self.map.lock();
        let range = map.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        let fate = self.faults.next();
        if fate == Fate::Dead {
            return Err(Fault::io("injected failure"));
        }
        let mut map = self.map.lock();
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        // A torn commit is one that was made, but whose answer is lost.
        if fate == Fate::Torn { Err(Fault::io("injected failure")) } else { Ok(()) }
    }

    fn size_bytes(&self) -> Result<u64> {
        Ok(self.map.lock().iter().map(|(key, value)| (key.len() + value.len()) as u64).sum())
    }
}
