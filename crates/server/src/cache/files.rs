//! The coordinated files in memory: those in use, and as many others as fit.

use super::record::{Journal, Record};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::{Generation, InodeId, Result};

/// Files kept in memory without being in use.
const IDLE_FILES_MAX: usize = 64 << 10;

/// A coordinated file.
pub(super) struct File {
    pub(super) inode: InodeId,
    /// Held while the file is flushed or cut.
    pub(super) flush: async_lock::Mutex<()>,
    state: Mutex<State>,
}

/// What changes of a file.
pub(super) struct State {
    pub(super) record: Record,
    /// Counts what makes the file dirty, so that a flush sees what came while it ran.
    pub(super) changes: u64,
    /// Whether a flush is changing the shared file just now.
    pub(super) flushing: bool,
}

impl File {
    fn new(inode: InodeId, record: Record) -> Arc<Self> {
        let state = State { record, changes: 0, flushing: false };
        Arc::new(Self { inode, flush: async_lock::Mutex::new(()), state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the record, and writes it down when the file has a journal. Nothing changes on an error.
    pub(super) fn update<T>(&self, journal: &Journal, change: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = self.state.lock();
        let before = state.record.clone();
        let result = change(&mut state);
        if state.record.journaled
            && state.record != before
            && let Err(fault) = journal.put(self.inode, &state.record)
        {
            state.record = before;
            return Err(fault);
        }
        Ok(result)
    }
}

/// The files in memory.
#[derive(Default)]
pub(super) struct Files(Mutex<BTreeMap<InodeId, Arc<File>>>);

impl Files {
    /// The file, from memory or from the ledger.
    pub(super) fn get(&self, journal: &Journal, inode: InodeId) -> Result<Option<Arc<File>>> {
        let mut files = self.0.lock();
        if let Some(file) = files.get(&inode) {
            return Ok(Some(file.clone()));
        }
        let Some(record) = journal.get(inode)? else { return Ok(None) };
        Ok(Some(Self::insert(&mut files, inode, record)))
    }

    /// The file, made from `record` when it is not known yet.
    pub(super) fn get_or_make(
        &self,
        journal: &Journal,
        inode: InodeId,
        record: impl FnOnce() -> Record,
    ) -> Result<Arc<File>> {
        if let Some(file) = self.get(journal, inode)? {
            return Ok(file);
        }
        let mut files = self.0.lock();
        if let Some(file) = files.get(&inode) {
            return Ok(file.clone());
        }
        Ok(Self::insert(&mut files, inode, record()))
    }

    fn insert(files: &mut BTreeMap<InodeId, Arc<File>>, inode: InodeId, record: Record) -> Arc<File> {
        if files.len() >= IDLE_FILES_MAX {
            // Files whose record is in the ledger, as all dirty ones are, come back from there. Of the others only
            // the generation is lost: they get a new one when they are opened next, and are read anew.
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = File::new(inode, record);
        files.insert(inode, file.clone());
        file
    }

    /// The files in memory of which the ledger knows nothing.
    pub(super) fn unjournaled(&self) -> Vec<Arc<File>> {
        self.0.lock().values().filter(|file| !file.state().record.journaled).cloned().collect()
    }
}

/// A generation that no content of an earlier life of this agent had.
pub(super) fn fresh_generation(runtime: &tameike_io::Runtime) -> Generation {
    let now = runtime.now();
    Generation(now.seconds.max(0) as u64 * 1_000_000 + u64::from(now.nanoseconds / 1000))
}
