//! Decoders of this room, for tests that feed them anything (feature `fuzz`).

use crate::cache;
use tameike_core::InodeId;
use tameike_store::check::{Book, Dirty};
use tameike_store::fuzz::MemoryTable;
use tameike_store::table::Table;

/// A record of the cache view's journal.
pub fn journal_record(bytes: &[u8]) {
    cache::fuzz_record(bytes);
}

/// Target, name, bytes of records as they are written.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (changes, record) = cache::fuzz_seeds();
    let mut table = MemoryTable::default();
    cache::replay(&changes, &mut table).expect("as written");
    let pair =
        |(key, value): (&Vec<u8>, &Vec<u8>)| [&[key.len() as u8, value.len() as u8][..], key, value].concat();
    let pairs = table.0.iter().flat_map(pair).collect();
    vec![("journal_record", "record", record), ("journal", "changes", changes), ("journal", "table", pairs)]
}

/// A record of the log with keys of the journal.
pub fn journal_log(bytes: &[u8]) {
    let mut table = MemoryTable::default();
    if cache::replay(bytes, &mut table).is_ok() {
        let size: usize = table.0.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(size <= bytes.len());
    }
}

/// Any records in the journal: a check reports what is wrong with them, and reports nothing after the repair.
pub fn journal(bytes: &[u8]) {
    let mut table = MemoryTable::of(bytes);
    let dirty = Dirty { inode: InodeId(1 << 63), bytes: 1, coordinated_here: true };
    for _ in 0..4 {
        let mut book = Book::default();
        cache::check::examine(&table, &[dirty], &mut book).expect("memory does not fail");
        let changes = book.take_changes();
        if changes.is_empty() {
            return;
        }
        for (key, value) in changes {
            match value {
                Some(value) => table.put(key, value),
                None => table.delete(key),
            }
        }
    }
    assert!(is_right(&table), "it never comes to an end");
}

/// Whether nothing is left to put right.
fn is_right(table: &MemoryTable) -> bool {
    let mut book = Book::default();
    cache::check::examine(table, &[], &mut book).is_ok() && book.take_changes().is_empty()
}
