//! Replay of log records.

use crate::ledger::{HomeRecord, RecordKind};
use crate::table::Table;
use crate::{copied, extent};
use tameike_core::Result;

/// Repeats the change of a record of names or of cached files.
type Replay<'a> = dyn FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + 'a;

/// Repeats the change of a log record. `names` repeats those of names and of cached files, which other modules and crates define.
///
/// # Errors
/// Those of `names`; `EBADMSG` or `EIO` if the record is malformed.
pub fn replay(kind: RecordKind, body: &[u8], table: &mut dyn Table, names: &mut Replay<'_>) -> Result<()> {
    match kind {
        RecordKind::Extents => extent::apply(body, table),
        RecordKind::Names | RecordKind::Cache => names(kind, body, table),
        RecordKind::Copied => copied::apply(body, table),
        RecordKind::OfHome => HomeRecord::decode(body)?.replay(table, names),
    }
}
