//! Entry points for fuzzing the decoders of this crate (feature `fuzz`).

use crate::cache;
use tameike_core::InodeId;
use tameike_store::check::{Dirty, Findings};
use tameike_store::fuzz::MemoryTable;

/// Decodes a record of the cache view's journal.
pub fn journal_record(bytes: &[u8]) {
    cache::fuzz_record(bytes);
}

/// Valid records as seeds: target, name and bytes of each.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (changes, record) = cache::fuzz_seeds();
    let mut table = MemoryTable::default();
    cache::replay(&changes, &mut table).expect("a valid record");
    let pair =
        |(key, value): (&Vec<u8>, &Vec<u8>)| [&[key.len() as u8, value.len() as u8][..], key, value].concat();
    let pairs = table.0.iter().flat_map(pair).collect();
    vec![("journal_record", "record", record), ("journal", "changes", changes), ("journal", "table", pairs)]
}

/// Replays a record of the log with keys of the journal.
pub fn journal_log(bytes: &[u8]) {
    let mut table = MemoryTable::default();
    if cache::replay(bytes, &mut table).is_ok() {
        let size: usize = table.0.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(size <= bytes.len());
    }
}

/// Checks a journal of arbitrary records: after the repair, the check finds nothing more.
pub fn journal(bytes: &[u8]) {
    let mut table = MemoryTable::of(bytes);
    let dirty = Dirty { inode: InodeId(1 << 63), bytes: 1, coordinated_here: true };
    for _ in 0..4 {
        let mut findings = Findings::default();
        cache::check::examine(&table, &[dirty], &mut findings).expect("memory does not fail");
        let changes = findings.take_changes();
        if changes.is_empty() {
            return;
        }
        table.change(changes);
    }
    let mut findings = Findings::default();
    let is_repaired =
        cache::check::examine(&table, &[], &mut findings).is_ok() && findings.take_changes().is_empty();
    assert!(is_repaired, "the repair does not converge");
}
