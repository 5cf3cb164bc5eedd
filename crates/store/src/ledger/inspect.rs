//! A ledger looked at without being opened: what its log says, and the table that opening it would give.
//!
//! Nothing on the media changes before [`Inspection::into_changes`] is committed by who asked for it.

use super::RecordKind;
use super::kv::applied_entry;
use super::kv::{Changes, Kv};
use super::record;
use super::recovery::{Log, Replay, applied};
use crate::table::Table;
use std::sync::Arc;
use tameike_core::Result;

/// What stands in the log.
#[derive(Debug, Default)]
pub(crate) struct LogReport {
    /// Whole records.
    pub(crate) records: u64,
    /// Files that end in bytes which are no record: number, place, how many.
    pub(crate) torn: Vec<(usize, usize, usize)>,
    /// What is missing or broken in the middle, in plain words.
    pub(crate) lost: Vec<String>,
    /// After a loss of power: the first record whose data was never safe; it and all later ones are dropped.
    pub(crate) cut: Option<u64>,
}

/// The table that a ledger would have.
pub(crate) struct Inspection {
    replayed: Replay,
    last: u64,
}

/// What applies records again.
pub(crate) type Apply<'a> = &'a mut dyn FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()>;
/// What says whether the bytes are there that a record names.
pub(crate) type Holds<'a> = &'a mut dyn FnMut(RecordKind, &[u8]) -> Result<bool>;

impl Inspection {
    /// Reads the files of the log over what the table's store has. After a loss of power (`holds`), records that
    /// nobody knew to be safe are believed as far as their bytes are there.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub(crate) fn new(
        kv: Arc<dyn Kv>,
        logs: [Vec<u8>; 2],
        mut holds: Option<Holds<'_>>,
        apply: Apply<'_>,
    ) -> Result<(Self, LogReport)> {
        let applied = applied(&*kv)?;
        let mut report = LogReport::default();
        let whole = Log::new(logs.clone(), record::parse);
        let log = match whole.tail(applied, holds.is_some()) {
            Ok(_) => whole,
            Err(_) => Log::new(logs, record::parse_damaged),
        };
        let tail = log.salvaged_tail(applied, holds.is_some(), &mut report.lost);
        let durable = log.durable();
        report.records = log.files.iter().map(|(_, _, contents)| contents.records.len() as u64).sum();
        if report.lost.is_empty() {
            report.torn = log.torn().collect();
        }
        let replayed = Replay::new(kv);
        let mut last = applied;
        for (bytes, record) in tail {
            let body = &bytes[record.body.clone()];
            if let Some(holds) = &mut holds
                && record.sequence > durable
                && !holds(record.kind, body)?
            {
                report.cut = Some(record.sequence);
                break;
            }
            if let Err(fault) = replayed.apply(|table| apply(record.kind, body, table)) {
                report.lost.push(format!("record {} cannot be applied: {fault}", record.sequence));
            }
            last = record.sequence;
        }
        Ok((Self { replayed, last }, report))
    }

    /// The table.
    pub(crate) fn table(&self) -> impl Table {
        self.replayed.table()
    }

    /// Makes changes to it.
    pub(crate) fn change(&self, changes: Changes) {
        self.replayed.merge(changes);
    }

    /// All that the table's store lacks. Once it is committed, the log says nothing more.
    pub(crate) fn into_changes(self) -> Changes {
        let mut changes = self.replayed.changes();
        changes.extend([applied_entry(self.last)]);
        changes
    }
}
