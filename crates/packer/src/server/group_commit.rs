//! Making safe what was packed: who asks while a sync is under way shares the next one.

use super::journal::Journal;
use super::packer::Packer;
use super::pending_promotions::PendingPromotions;
use super::store::Store;
use crate::CONTAINER;
use std::sync::Arc;
use tameike_container::UnsafePart;
use tameike_core::wire::pack::PackReply;
use tameike_core::{Fault, Result};
use tameike_io::shared::{SharedFile, SharedFs};

/// What is to be synced.
pub struct Unsafe {
    part: UnsafePart,
    /// The container's directory, where content has gone outside: what tells of that is not safe before it.
    dir: Option<Arc<dyn SharedFs>>,
    /// What tells on the device whose content that is.
    owed: Option<Arc<dyn SharedFile>>,
    /// Changes that are safe then.
    changes: u64,
}

impl Unsafe {
    fn sync(&self) -> Result<()> {
        self.owed.as_ref().map_or(Ok(()), |owed| owed.sync())?;
        self.dir.as_ref().map_or(Ok(()), |dir| dir.sync_dir(b""))?;
        self.part.sync()
    }
}

impl Packer {
    /// Makes all that was changed safe, an open file with it but for content that is outside. Others are served meanwhile.
    ///
    /// # Errors
    /// As [`Store::sync`]; `ESTALE` when the job has ended.
    pub(crate) fn sync(&self, file: Option<u64>) -> Result<PackReply> {
        let (asked, outside) = self.with_store(|store| {
            let asked = store.put_all(file)?;
            let outside = file.map(|file| store.look(file)).transpose()?.filter(|stat| stat.is_outside);
            Ok((asked, outside.map(|stat| stat.number)))
        })?;
        let _one = self.syncing.lock();
        if let Some(part) = self.with_store(|store| store.begin_sync(asked))? {
            let synced = part.sync();
            self.with_store(|store| store.end_sync(&part, synced))?;
        }
        Ok(outside.map_or(PackReply::Done, |file| PackReply::Outside { file }))
    }

    /// Has the container be synced where much waits for that: what is noted, and content of files that are gone, of which more than `gone_max`
    /// take no room. Where that fails, so does what is changed next.
    pub(crate) fn bound_unsafe(&self, gone_max: usize) {
        let is_full = |store: &Store| {
            store.journal.as_ref().is_some_and(Journal::is_full) || store.gone.len() > gone_max
        };
        let is_needed = self.state.lock().store.as_ref().is_some_and(is_full);
        if is_needed {
            let _ = self.sync(None);
        }
    }
}

impl Store {
    /// Makes all that was changed safe.
    ///
    /// # Errors
    /// What the file system says. After a failed fsync nothing is believed any more.
    pub fn sync(&mut self) -> Result<()> {
        let asked = self.put_all(None)?;
        let Some(part) = self.begin_sync(asked)? else { return Ok(()) };
        let synced = part.sync();
        self.end_sync(&part, synced)
    }

    /// What was changed, of an open file, too, is put: how many changes that is.
    fn put_all(&mut self, file: Option<u64>) -> Result<u64> {
        if let Some(number) = file {
            self.publish(number)?;
        }
        if self.is_foreign {
            // Nothing of it is this job's.
            return Ok(0);
        }
        self.check()?;
        Ok(self.changes)
    }

    /// What is to be synced so that so many changes are safe, if they are not.
    fn begin_sync(&mut self, asked: u64) -> Result<Option<Unsafe>> {
        if self.safe >= asked {
            return Ok(None);
        }
        self.check()?;
        self.write_pending()?;
        let changes = self.changes;
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let part = writer.begin_sync()?;
        self.journal.iter_mut().for_each(Journal::begin_sync);
        let dir = std::mem::take(&mut self.has_new_outside).then(|| self.fs.clone());
        let owed = self.owed.as_mut().and_then(PendingPromotions::begin_sync);
        Ok(Some(Unsafe { part, dir, owed, changes }))
    }

    fn end_sync(&mut self, synced: &Unsafe, result: Result<()>) -> Result<()> {
        if let Err(fault) = result {
            let why = format!(
                "fsync of {}: {fault}. Nothing that was packed since is believed: end the job, and finish it by \
                 `tameike recover`",
                String::from_utf8_lossy(CONTAINER)
            );
            let fault = Fault::io(why);
            self.failure = Some(fault.clone());
            return Err(fault);
        }
        if let Some(writer) = &mut self.writer {
            writer.end_sync(&synced.part);
        }
        self.journal.iter_mut().for_each(Journal::end_sync);
        self.safe = self.safe.max(synced.changes);
        self.remove_gone(self.safe);
        Ok(())
    }
}
