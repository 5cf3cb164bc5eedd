//! Interface of the key-value store below the ledger, and one in memory.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tameike_core::{Fault, Result};
use tameike_io::disk::memory::{FaultOutcome, Faults};

/// Changes to keys: a value, or `None` for a removal.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The key of the sequence number of the last applied record. No key of the table begins with 0.
pub(super) const APPLIED_KEY: &[u8] = &[0];

/// The entry that stores the sequence number of the last applied record.
pub(super) fn applied_entry(sequence: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    (APPLIED_KEY.to_vec(), Some(sequence.to_le_bytes().to_vec()))
}

/// An ordered map on a disk. Calls block the thread.
pub trait Kv: Send + Sync {
    /// The map as of its last commit, without a read of the disk. Drop it soon: entries removed since keep their space
    /// until then, and a store that must reopen its file waits for it.
    fn snapshot(&self) -> Arc<dyn Snapshot>;
    /// Makes all `changes` durable, atomically.
    fn commit(&self, changes: &Changes) -> Result<()>;
    /// Size on the disk, in bytes.
    fn size_bytes(&self) -> Result<u64>;
}

/// The content of a [`Kv`] at one moment: later commits do not change it. Calls block the thread.
pub trait Snapshot: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys from `start` (included) to `end` (excluded) with their values, ascending, at most `limit`.
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key-value store in memory, for tests and simulated clusters.
#[derive(Clone, Default)]
pub struct MemoryKv {
    map: Arc<Mutex<Arc<Map>>>,
    faults: Faults,
}

impl MemoryKv {
    /// Creates an empty store whose commits fail as `faults` says.
    pub fn new(faults: Faults) -> Self {
        Self { map: Arc::default(), faults }
    }
}

impl Snapshot for Map {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(BTreeMap::get(self, key).cloned())
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range = self.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl Kv for MemoryKv {
    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.map.lock().clone()
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        let outcome = self.faults.next();
        if outcome == FaultOutcome::Failed {
            return Err(Fault::io("injected failure"));
        }
        let mut shared = self.map.lock();
        let map = Arc::make_mut(&mut shared);
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        // A torn commit is one that happened but whose reply is lost.
        if outcome == FaultOutcome::Torn { Err(Fault::io("injected failure")) } else { Ok(()) }
    }

    fn size_bytes(&self) -> Result<u64> {
        Ok(self.map.lock().iter().map(|(key, value)| (key.len() + value.len()) as u64).sum())
    }
}
