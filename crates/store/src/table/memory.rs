//! A table in memory, for tests and fuzzing.

use super::{ReadTable, Table};
use std::collections::BTreeMap;
use std::ops::Bound;
use tameike_core::Result;

/// A table in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl ReadTable for MemoryTable {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range = self.0.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl Table for MemoryTable {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.insert(key, value);
    }
    fn delete(&mut self, key: Vec<u8>) {
        self.0.remove(&key);
    }
}

#[cfg(feature = "fuzz")]
impl MemoryTable {
    /// A table of the records in `bytes`, each with the length of its key and of its value (one byte each), key, value.
    pub fn of(mut bytes: &[u8]) -> Self {
        let mut table = Self::default();
        while let [key, value, rest @ ..] = bytes {
            let (key, rest) = rest.split_at(usize::from(*key).min(rest.len()));
            let (value, rest) = rest.split_at(usize::from(*value).min(rest.len()));
            if !key.is_empty() {
                table.put(key.to_vec(), value.to_vec());
            }
            bytes = rest;
        }
        table
    }

    /// Applies the changes of a repair.
    pub fn change(&mut self, changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        for (key, value) in changes {
            match value {
                Some(value) => self.put(key, value),
                None => self.delete(key),
            }
        }
    }
}
