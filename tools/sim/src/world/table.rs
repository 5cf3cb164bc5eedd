//! The table of a node's ledger, in memory, with faults of a countdown.

use super::disk_faults::{Control, injected};
use crate::countdown::FaultKind;
use std::sync::Arc;
use tameike_core::Result;
use tameike_store::ledger::kv::{Changes, Kv, MemoryKv, Snapshot};

const TABLE: &str = "table";

pub(super) struct FaultyTable {
    pub inner: MemoryKv,
    pub control: Arc<Control>,
}

struct FaultySnapshot {
    inner: Arc<dyn Snapshot>,
    control: Arc<Control>,
}

impl Kv for FaultyTable {
    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(FaultySnapshot { inner: self.inner.snapshot(), control: self.control.clone() })
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        match self.control.register(TABLE, "commit", &[FaultKind::Fails, FaultKind::Done]) {
            None => self.inner.commit(changes),
            Some(FaultKind::Done) => self.inner.commit(changes).and(Err(injected("commit"))),
            Some(_) => Err(injected("commit")),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        self.control.check(TABLE, "size")?;
        self.inner.size_bytes()
    }
}

impl Snapshot for FaultySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.control.check(TABLE, "get")?;
        self.inner.get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.control.check(TABLE, "scan")?;
        self.inner.scan(start, end, limit)
    }
}
