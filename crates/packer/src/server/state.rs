//! The state that requests to the packer share, and the writes and syncs that they share.

use super::marks::Marks;
use super::store::Store;
use super::succession::{CALLS, Calls, MARKS};
use crate::recent_lookups::NameChanges;
use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use tameike_core::wire::pack::PackReply;
use tameike_core::{Errno, Fault, Result};

/// The state of a packer.
#[derive(Default)]
pub struct State {
    /// From its first use until the job ends.
    pub store: Option<Store>,
    has_ended: bool,
    pub marks: Marks,
    pub calls: Calls,
    pub names: NameChanges,
}

impl State {
    /// The store, which `open` opens where that was not done yet. Fails with `ESTALE` if the job has ended.
    pub fn store_or_open(&mut self, open: impl FnOnce() -> Result<Store>) -> Result<&mut Store> {
        let store = match self.store.take() {
            Some(store) => store,
            None if self.has_ended => return Err(Fault::new(Errno::ESTALE, "the job has ended")),
            None => open()?,
        };
        Ok(self.store.insert(store))
    }

    /// Takes what an earlier packer of the job has noted in the container.
    pub fn read_notes(&mut self) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        self.marks = Marks::of_note(&store.note(MARKS)?.unwrap_or_default());
        self.calls = Calls::of_note(&store.note(CALLS)?.unwrap_or_default());
        Ok(())
    }

    /// Ends the job: returns the store, which no request opens again.
    pub fn end(&mut self) -> Option<Store> {
        self.has_ended = true;
        self.store.take()
    }
}

/// The state behind its locks.
#[derive(Default)]
pub struct SharedState {
    state: Mutex<State>,
    /// One sync at a time.
    syncing: Mutex<()>,
    /// One write of entries at a time.
    writing: Mutex<()>,
}

impl SharedState {
    /// The state of a packer that takes over at this time.
    pub fn after_another(now: Duration) -> Self {
        let state = State { names: NameChanges::unknown_at(now), ..State::default() };
        Self { state: Mutex::new(state), ..Self::default() }
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Keeps out other syncs: of two at a time only one gets the error of the file system.
    pub fn lock_syncs(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    /// Calls `act` with the store. Fails with `ESTALE` if no store is open.
    pub fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        act(self.state.lock().store.as_mut().ok_or(Errno::ESTALE)?)
    }

    /// Makes all changes durable, those of an open file included except for its external content. Serves other requests meanwhile;
    /// syncs that are requested during this one share the next. Fails with `ESTALE` if the job has ended.
    pub fn sync(&self, file: Option<u64>) -> Result<PackReply> {
        let (changes, external) = self.with_store(|store| {
            let changes = store.put_all(file)?;
            let external =
                file.map(|file| store.stat_open(file)).transpose()?.filter(|stat| stat.is_external);
            Ok((changes, external.map(|stat| stat.number)))
        })?;
        let _one = self.lock_syncs();
        if let Some(sync) = self.with_store(|store| store.begin_sync(changes))? {
            let synced = sync.sync();
            self.with_store(|store| store.end_sync(&sync, synced))?;
        }
        Ok(external.map_or(PackReply::Done, |file| PackReply::External { file }))
    }

    /// Syncs where much waits for that: a full journal, or more than `removals_max` external files of removed ones. Where the sync fails,
    /// so does the next change.
    pub fn bound_unsynced(&self, removals_max: usize) {
        let is_needed = self.state.lock().store.as_ref().is_some_and(|store| store.needs_sync(removals_max));
        if is_needed {
            let _ = self.sync(None);
        }
    }

    /// Writes the entry that was put at an address. Entries that are put during a write share the next one (decision 0053).
    pub fn write_entry(&self, address: u64) -> Result<()> {
        self.write_with_others(address);
        self.with_store(|store| store.write_entry(address))
    }

    /// As [`Self::write_entry`], whose errors [`Store::write_entry`] reports.
    pub fn write_with_others(&self, address: u64) {
        let _one = self.writing.lock();
        if let Ok(Some(given)) = self.with_store(|store| store.begin_write(address)) {
            given.write();
        }
    }

    /// Waits until the creation of the file at a path is with the file system: a reply that finds the file is then true.
    pub fn await_creation(&self, path: &[u8]) -> Result<()> {
        let unwritten = self.state.lock().store.as_ref().and_then(|store| store.unwritten(path));
        unwritten.map_or(Ok(()), |address| self.write_entry(address))
    }
}
