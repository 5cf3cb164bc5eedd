//! Syncs the container together with the external content that its entries name.

use super::Store;
use crate::CONTAINER;
use crate::server::entry_log::LogSync;
use crate::server::external_content::UnsyncedExternal;
use crate::server::ownership::OwnerLock;
use tameike_core::{Fault, Result};

/// A sync of a store in flight, which runs without the store.
pub struct StoreSync {
    log: LogSync,
    /// Entries that name external files are not durable before these.
    external: UnsyncedExternal,
}

impl StoreSync {
    /// Syncs; blocks.
    pub fn sync(&self) -> Result<()> {
        self.external.sync()?;
        self.log.records.sync()
    }
}

impl Store {
    /// Makes all changes durable. After a failed fsync the store takes no more changes.
    pub fn sync(&mut self) -> Result<()> {
        let changes = self.put_all(None)?;
        let Some(sync) = self.begin_sync(changes)? else { return Ok(()) };
        let synced = sync.sync();
        self.end_sync(&sync, synced)
    }

    /// Puts the changes of an open file, and returns the count of all changes so far.
    pub fn put_all(&mut self, file: Option<u64>) -> Result<u64> {
        if let Some(number) = file {
            self.publish(number)?;
        }
        if self.is_foreign {
            // This job has changed nothing.
            return Ok(0);
        }
        self.check()?;
        Ok(self.log.changes())
    }

    /// Begins a sync, unless this count of changes is durable.
    pub fn begin_sync(&mut self, changes: u64) -> Result<Option<StoreSync>> {
        if self.log.durable_changes() >= changes {
            return Ok(None);
        }
        self.lock.iter_mut().for_each(OwnerLock::take_again);
        let log = self.log.begin_sync()?;
        Ok(log.map(|log| StoreSync { log, external: self.external.begin_sync() }))
    }

    /// Ends a sync with its result.
    pub fn end_sync(&mut self, sync: &StoreSync, result: Result<()>) -> Result<()> {
        if let Err(fault) = result {
            let why = format!(
                "fsync of {}: {fault}. Data packed since the last sync may not be durable: end the job, then run \
                 `tameike recover`",
                String::from_utf8_lossy(CONTAINER)
            );
            let fault = Fault::io(why);
            self.log.fail(fault.clone());
            return Err(fault);
        }
        self.log.end_sync(&sync.log);
        self.external.remove_until(self.log.durable_changes());
        Ok(())
    }

    /// Whether much waits for a sync: a full journal, or more than `removals_max` external files whose space it frees.
    pub fn needs_sync(&self, removals_max: usize) -> bool {
        self.log.is_journal_full() || self.external.removals() > removals_max
    }
}
