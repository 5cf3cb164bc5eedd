//! The container of a shared directory as the packer has it: each change is with the file system before it is acknowledged.

mod content;
mod external;
mod names;
mod sync;

pub use content::{Created, NewFile};
pub use external::ExternalFiles;
pub use names::SecondName;

use super::crash_recovery::{Interrupted, put_lost, sync_interrupted};
use super::entries::is_file;
use super::entry_log::EntryLog;
use super::external_content::ExternalContent;
use super::journal::{Earlier, Journal, JournaledContainer};
use super::open_files::OpenFiles;
use super::ownership::{OwnerLock, Ownership, of_another_user, oldest_subfile, open_superblock, take};
use super::pending_promotions::PendingPromotions;
use super::succession::Succession;
use crate::external::ContainerDir;
use crate::{CONTAINER, unless_missing};
use tameike_container::format::subfile;
use tameike_container::{Container, IndexEntry, Listing, split_path};
use tameike_core::wire::pack::{PACKED_NAMES_MAX, PackedStat};
use tameike_core::{Errno, Fault, Result, Timestamp};
use tameike_io::os::process::wall;
use tameike_io::shared::{Access, SharedFs, join};

/// The container, its open files and its external files.
pub struct Store {
    log: EntryLog,
    files: OpenFiles,
    /// Its external files.
    pub external: ExternalContent,
    /// Changes of an earlier incarnation that could not be recovered.
    not_recovered: Option<Fault>,
    /// A job that wrote the container did not finish.
    pub was_interrupted: bool,
    /// Another job writes the container: this one only reads it.
    pub is_foreign: bool,
    /// When a foreign container was read last.
    refreshed: Timestamp,
    /// Keeps other jobs from the container.
    lock: Option<OwnerLock>,
    succession: Succession,
}

impl Store {
    /// Opens the container in a directory, and creates it where there is none. Puts again what an earlier incarnation of this packer has
    /// journaled on its `device` and the container lacks. Fails with `EBUSY` if another job writes it.
    pub fn open(
        dir: ContainerDir,
        device: &dyn SharedFs,
        may_share: bool,
        (job, succession): (Option<&str>, Succession),
    ) -> Result<Self> {
        let ContainerDir { fs, why_not_own } = dir;
        let is_own = why_not_own.is_none();
        if let (Some(why), false) = (why_not_own, may_share) {
            let message = format!(
                "{why}: packed files would not be private there; remove it, or share another directory"
            );
            return Err(Fault::new(Errno::EPERM, message));
        }
        let superblock = open_superblock(&*fs, is_own)?;
        let (lock, failure) = match if is_own { take(&*fs, job, succession)? } else { of_another_user() } {
            Ownership::Ours(lock) => (lock, None),
            Ownership::Foreign(errno, why) if !may_share => return Err(Fault::new(errno, why)),
            Ownership::Foreign(_, why) => (None, Some(Fault::new(Errno::EROFS, why))),
        };
        let is_foreign = failure.is_some();
        let Interrupted { was_interrupted, is_doubtful } =
            if is_foreign { Interrupted::default() } else { sync_interrupted(&*fs)? };
        let container = Container::open(fs.clone())?;
        let (journal, earlier) = match is_foreign {
            true => (None, Earlier::default()),
            false => {
                let whose =
                    JournaledContainer { container: superblock.container, oldest: oldest_subfile(&*fs)? };
                Journal::open(device, whose).map(|(journal, earlier)| (Some(journal), earlier))?
            }
        };
        let promotions = if is_foreign { None } else { Some(PendingPromotions::open(device)?) };
        let mut store = Self {
            log: EntryLog::new(container, journal, failure),
            files: OpenFiles::default(),
            external: ExternalContent::new(fs, promotions),
            not_recovered: None,
            was_interrupted,
            is_foreign,
            refreshed: wall(),
            lock,
            succession,
        };
        store.recover(earlier, is_doubtful);
        Ok(store)
    }

    /// Puts again what an earlier incarnation has journaled and the container has lost. Where that fails, the store takes no changes, and the
    /// journal stays for another incarnation.
    fn recover(&mut self, earlier: Earlier, is_doubtful: bool) {
        if earlier.noted.is_empty() {
            return;
        }
        // The journal has all of it already.
        let journal = self.log.take_journal();
        let recovered = put_lost(&mut self.log, earlier, is_doubtful);
        match recovered.and_then(|lost| self.sync().map(|()| lost)) {
            Ok(lost) => self.not_recovered = lost.fault(),
            Err(fault) => {
                let why = format!(
                    "{}: cannot re-create directory entries that the file system lost: {fault}",
                    String::from_utf8_lossy(CONTAINER)
                );
                self.log.fail(Fault::new(fault.errno, why));
            }
        }
        // A journal that is still needed stays as it is.
        if let Some(journal) = journal.filter(|_| self.not_recovered.is_none() && self.log.check().is_ok()) {
            self.log.restart_journal(journal);
        }
    }

    /// Reads what another job has added, once a second at most.
    pub fn refresh(&mut self) -> Result<()> {
        let now = wall();
        if self.is_foreign && now.seconds != self.refreshed.seconds {
            self.refreshed = now;
            self.log.refresh()?;
        }
        Ok(())
    }

    /// Fails when the store takes no changes.
    pub fn check(&self) -> Result<()> {
        self.log.check()
    }

    /// The attributes of the file at a path.
    pub fn stat(&mut self, path: &[u8]) -> Result<PackedStat> {
        match self.files.at(path) {
            Some(file) => Ok(file.stat()),
            None => self.log.stat(path),
        }
    }

    /// A page of the names in a directory after one, with the numbers of their files.
    pub fn names(&mut self, dir: &[u8], after: &[u8]) -> Result<Vec<(Vec<u8>, u64)>> {
        let may_be_file = |entry: &Result<IndexEntry>| entry.as_ref().map_or(true, is_file);
        let found = self.log.container().children_after(dir, after)?.filter(may_be_file);
        let found: Vec<_> = found.take(PACKED_NAMES_MAX).collect::<Result<_>>()?;
        let numbered =
            found.into_iter().map(|entry| (split_path(&entry.path).1.to_vec(), self.stat(&entry.path)));
        numbered.map(|(name, stat)| Ok((name, stat?.number))).collect()
    }

    /// The paths of all files below a directory.
    pub fn below(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut dirs, mut paths) = (vec![dir.to_vec()], Vec::new());
        while let Some(dir) = dirs.pop() {
            for entry in self.log.container().children(&dir)? {
                paths.push(entry?.path);
            }
            let names = self.log.container().directories_in(&dir)?;
            dirs.extend(names.iter().map(|name| join(&dir, name)));
        }
        let files = paths.into_iter().map(|path| Ok(unless_missing(self.log.entry(&path))?.map(|_| path)));
        files.filter_map(Result::transpose).collect()
    }

    /// Whether the container has anything below a directory.
    pub fn has_below(&self, dir: &[u8]) -> Result<bool> {
        let container = self.log.container();
        let has_children = container.children(dir)?.next().transpose()?.is_some();
        Ok(has_children || !container.directories_in(dir)?.is_empty())
    }

    /// Begins a change, with space for it and for undoing it.
    fn begin(&mut self) -> Result<()> {
        self.log.begin()?;
        if self.log.is_full() {
            // Removing external files frees space at once.
            self.external.remove_until(u64::MAX);
        }
        self.log.retry_and_reserve()
    }

    /// Drops the pages of the container's files: the next reads come from the file system.
    pub fn forget_pages(&mut self) -> Result<()> {
        self.log.write_pending()?;
        let dir = &self.external.dir;
        for number in Listing::of(&**dir)?.numbers {
            dir.open(&subfile::name(number), Access::Read)?.forget_pages()?;
        }
        Ok(())
    }

    /// Makes all changes of programs durable, and ends the journal: later changes of the packer itself lose nothing of those.
    pub fn end_journal(&mut self) -> Result<()> {
        self.files.numbers().into_iter().try_for_each(|number| self.publish(number))?;
        self.sync()?;
        self.log.take_journal().map_or(Ok(()), |mut journal| journal.clear())?;
        self.not_recovered.take().map_or(Ok(()), Err)
    }

    /// Makes all changes durable, and writes the index. If only the index cannot be written, the container is complete, and takes longer to
    /// open.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        self.drop_nameless();
        self.external.remove_until(self.log.durable_changes());
        if self.log.has_writer() {
            return self.log.end_writing();
        }
        // An interrupted incarnation has written no index. A full file system may have no space for one. The writer of an index has a lane:
        // so no other tool compacts the container meanwhile.
        if self.was_interrupted
            && !self.log.container().is_indexed()
            && let Err(fault) = self.begin().and_then(|()| self.log.end_writing())
        {
            log::warn!("a container of packed files has no index, and takes longer to open: {fault}");
        }
        Ok(())
    }
}
