//! The ledger: a log of changes and the table that they make.
//!
//! A change is a record. It is applied to the table and appended to the log; replaying the log gives the same
//! table. The table is a key-value store with an overlay of the changes since the last checkpoint.

pub mod kv;

use crate::table::Table;
use std::sync::Arc;
use tameike_core::Result;

/// To whom a record belongs: the first byte of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Names and attributes.
    Names = 1,
    /// Extents of units.
    Extents = 2,
    /// Coordination of cached files.
    Cache = 3,
}

/// The log and the table of one store.
pub struct Ledger {}

impl Ledger {
    /// Runs `change`. On `Ok` its changes to the table are kept and (`kind`, `body`) goes to the log's buffer; a
    /// change that put and deleted nothing is not logged. On `Err` every change to the table is undone.
    pub fn execute<T>(
        &self,
        kind: RecordKind,
        body: &[u8],
        change: impl FnOnce(&mut dyn Table) -> Result<T>,
    ) -> Result<T> {
        let _ = (kind, body, change);
        todo!()
    }

    /// Runs `query` on the table as it is now.
    pub fn read<T>(&self, query: impl FnOnce(&dyn Table) -> Result<T>) -> Result<T> {
        let _ = query;
        todo!()
    }

    /// Waits while the table's changes since the last checkpoint take more memory than they may. Whoever
    /// executes many records waits here before each.
    pub async fn room(&self) -> Result<()> {
        todo!()
    }

    /// Makes all executed records safe against the death of the agent (`durable == false`), or against power
    /// loss with the data they name (`durable == true`). Concurrent callers share one write and one sync.
    pub async fn sync(&self, durable: bool) -> Result<()> {
        let _ = durable;
        todo!()
    }

    /// Moves all changes into the key-value store and empties the log.
    pub async fn checkpoint(&self) -> Result<()> {
        todo!()
    }
}

#[allow(dead_code)]
type Shared = Arc<Ledger>;
