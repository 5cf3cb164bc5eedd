//! Entry points for fuzzing the decoders of this crate (feature `fuzz`).
//!
//! Each function panics if a decoded value does not encode to the same value, or takes more memory than its bytes.

use crate::check::Findings;
use crate::check::identity::Identity;
use crate::extent::check::Extents;
use crate::meta::check::Names;
use crate::meta::{self, LogCommand};
use crate::table::HomeTable;
pub use crate::table::memory::MemoryTable;
use std::path::Path;
use tameike_core::wire::codec;
use tameike_core::{HomeId, InodeId};

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
                if meta::apply(&mut HomeTable::new(HomeId(0), &mut changed), &command).is_ok() {
                    table = changed;
                }
            }
            rest = more;
        }
        table
    };
    let table = play();
    assert_eq!(table, play());
    let mut findings = Findings::default();
    assert!(Names::examine(&table, &mut findings).is_ok());
}

/// Checks a table of arbitrary records: after the repair, the check finds nothing more.
pub fn table_values(bytes: &[u8]) {
    let mut table = MemoryTable::of(bytes);
    let extents = Extents::open(Path::new("/nonexistent")).expect("a missing file is no error");
    for round in 0..32 {
        let mut findings = Findings::default();
        let names = Names::examine(&table, &mut findings).expect("memory does not fail");
        let name = |inode: InodeId| names.path(&table, inode);
        let mut none = |_: u64, _: u64| ();
        extents.examine(&table, &names, &name, Some(&mut none), &mut findings).expect("memory does not fail");
        let changes = findings.take_changes();
        if changes.is_empty() {
            return;
        }
        assert!(round < 31, "the repair does not converge");
        table.change(changes);
    }
}

/// Decodes the file `format` of a store.
pub fn format(bytes: &[u8]) {
    if let Identity::Ours { boot_id } = Identity::of(bytes) {
        let again = format!("{} {boot_id}\n", crate::directory::FORMAT);
        assert_eq!(Identity::of(again.as_bytes()), Identity::Ours { boot_id });
    }
}
