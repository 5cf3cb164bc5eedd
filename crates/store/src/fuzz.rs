//! Entry points for fuzzing the decoders of this crate (feature `fuzz`).
//!
//! Each function panics if a decoded value does not encode to the same value, or takes more memory than its bytes.

use crate::check::Book;
use crate::check::identity::Identity;
use crate::extent::check::Extents;
use crate::meta::check::Names;
use crate::meta::{self, LogCommand};
use crate::table::Table;
use std::collections::BTreeMap;
use std::path::Path;
use tameike_core::wire::codec;
use tameike_core::{InodeId, Result};

/// A table in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl Table for MemoryTable {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range =
            self.0.range::<[u8], _>((std::ops::Bound::Included(start), std::ops::Bound::Excluded(end)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.insert(key, value);
    }
    fn delete(&mut self, key: Vec<u8>) {
        self.0.remove(&key);
    }
}

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
}

/// Parses `bytes` as a log file.
pub fn log(bytes: &[u8]) {
    crate::ledger::fuzz_log(bytes);
}

/// Decodes an index record of a unit, and its log record.
pub fn unit_record(bytes: &[u8]) {
    crate::extent::fuzz_record(bytes);
    let mut table = MemoryTable::default();
    if crate::extent::apply(bytes, &mut table).is_ok() {
        assert!(table.0.len() <= 2);
    }
}

/// Applies commands of the metadata state machine (length, command): the same commands on the same table give the same
/// table.
pub fn log_command(bytes: &[u8]) {
    let play = || {
        let (mut table, mut rest) = (MemoryTable::default(), bytes);
        while let [length, more @ ..] = rest {
            let (body, more) = more.split_at(usize::from(*length).min(more.len()));
            if let Ok(command) = codec::decode::<LogCommand>(body) {
                let again = codec::encode(&command).and_then(|bytes| codec::decode::<LogCommand>(&bytes));
                assert_eq!(again.as_ref(), Ok(&command));
                let mut changed = table.clone();
                if meta::apply(&mut changed, &command).is_ok() {
                    table = changed;
                }
            }
            rest = more;
        }
        table
    };
    let table = play();
    assert_eq!(table, play());
    let mut book = Book::default();
    assert!(Names::examine(&table, &mut book).is_ok());
}

/// Checks a table of arbitrary records: after the repair, the check finds nothing more.
pub fn table_values(bytes: &[u8]) {
    let mut table = MemoryTable::of(bytes);
    let extents = Extents::open(Path::new("/nonexistent")).expect("a missing file is no error");
    for round in 0..32 {
        let mut book = Book::default();
        let names = Names::examine(&table, &mut book).expect("memory does not fail");
        let name = |inode: InodeId| names.path(&table, inode);
        let mut none = |_: u64, _: u64| ();
        extents.examine(&table, &names, &name, Some(&mut none), &mut book).expect("memory does not fail");
        let changes = book.take_changes();
        if changes.is_empty() {
            return;
        }
        assert!(round < 31, "the repair does not converge");
        for (key, value) in changes {
            match value {
                Some(value) => table.put(key, value),
                None => table.delete(key),
            }
        }
    }
}

/// Decodes the file `format` of a store.
pub fn format(bytes: &[u8]) {
    if let Identity::Ours { boot_id } = Identity::of(bytes) {
        let again = format!("{} {boot_id}\n", crate::directory::FORMAT);
        assert_eq!(Identity::of(again.as_bytes()), Identity::Ours { boot_id });
    }
}
