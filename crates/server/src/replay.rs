//! Replay of log records of names and of cached files.

use tameike_core::{Errno, Fault, Result};
use tameike_store::table::Table;
use tameike_store::{RecordKind, meta};

/// Repeats the change of a log record of names or of cached files.
///
/// # Errors
/// `EBADMSG` if the record is of another kind or malformed; those of the change.
pub fn replay(kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()> {
    match kind {
        RecordKind::Names => meta::replay(table, body),
        RecordKind::Cache => crate::cache::replay(body, table),
        RecordKind::Extents | RecordKind::OfHome | RecordKind::Copied => {
            Err(Fault::new(Errno::EBADMSG, "a log record is neither one of names nor of cached files"))
        }
    }
}
