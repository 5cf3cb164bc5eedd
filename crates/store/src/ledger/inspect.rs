//! Read-only inspection of a ledger: the state of its log, and the table that opening it would give.
//!
//! The media do not change until the caller commits [`Inspection::into_changes`].

use super::RecordKind;
use super::kv::applied_entry;
use super::kv::{Changes, Kv};
use super::record;
use super::recovery::{Log, Replay, applied};
use crate::table::Table;
use std::sync::Arc;
use tameike_core::Result;

#[derive(Debug, Default)]
pub(crate) struct LogReport {
    pub(crate) records: u64,
    /// Files that end in bytes that are no record: number of the file, offset, number of bytes.
    pub(crate) torn: Vec<(usize, usize, usize)>,
    /// Descriptions of missing or broken records in the middle.
    pub(crate) lost: Vec<String>,
    /// After a power loss, the first record whose data never became durable; recovery drops it and all later ones.
    pub(crate) truncated_at: Option<u64>,
}

/// The table that the ledger would have once opened.
pub(crate) struct Inspection {
    replayed: Replay,
    last: u64,
}

pub(crate) type Apply<'a> = &'a mut dyn FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()>;
/// Returns true if the bytes that a record names are intact.
pub(crate) type Holds<'a> = &'a mut dyn FnMut(RecordKind, &[u8]) -> Result<bool>;

impl Inspection {
    /// Replays the log files over the table in `kv`. After a power loss (`holds` is given), it accepts records that no
    /// mark calls durable only if their bytes are intact.
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
                report.truncated_at = Some(record.sequence);
                break;
            }
            if let Err(fault) = replayed.apply(|table| apply(record.kind, body, table)) {
                report.lost.push(format!("record {} cannot be applied: {fault}", record.sequence));
            }
            last = record.sequence;
        }
        Ok((Self { replayed, last }, report))
    }

    pub(crate) fn table(&self) -> impl Table {
        self.replayed.table()
    }

    pub(crate) fn change(&self, changes: Changes) {
        self.replayed.merge(changes);
    }

    /// All changes that the key-value store lacks. Once they are committed, the log is obsolete.
    pub(crate) fn into_changes(self) -> Changes {
        let mut changes = self.replayed.changes();
        changes.extend([applied_entry(self.last)]);
        changes
    }
}
