//! The packer of a job: serves the requests of all agents for packed files.

use super::directory_rename::DirectoryRenamer;
use super::directory_snapshots::{CachedLookup, DirectorySnapshots};
use super::promote::Promoter;
use super::requests::{puts_entry, serve_from, serve_without_store};
use super::state::{SharedState, State};
use super::store::{Created, NewFile, Store};
use crate::external::OpenContainer;
use crate::recent_lookups::NameChanges;
use crate::{CONTAINER, LOCAL_BYTES_MAX, PackHandler, is_dir, unless_missing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{Changed, PackReply, PackRequest};
use tameike_core::{Errno, Result};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{SharedFs, Special, split};

/// External files of removed files that may wait for a sync.
const REMOVALS_MAX: usize = 32;
/// Permissions of the container's directory. A user who can read the container can read all files in it, whatever their permissions.
const PRIVATE: u16 = 0o700;

/// The environment of a packer.
pub struct PackerParts {
    /// The shared directory.
    pub plain: Arc<dyn SharedFs>,
    /// Opens the container's directory, which exists.
    pub container: OpenContainer,
    /// A directory on the packer's node that outlives this process.
    pub device: Arc<dyn SharedFs>,
    /// Whether files are packed in directories without a mark.
    pub packs: bool,
    /// The size up to which content is in the container. Larger content is external.
    pub size_max: u64,
}

/// The packer of a job.
pub struct Packer {
    parts: PackerParts,
    may_share: bool,
    state: SharedState,
    snapshots: DirectorySnapshots,
    pieces_moved: AtomicU64,
}

/// The outcome of the first step of a creation.
enum Creating {
    Created(Created),
    /// The file is not created, for this reason.
    Not(PackReply),
}

impl Packer {
    /// The packer of a shared directory. Opens the container if there is one, and finishes what earlier incarnations have begun.
    ///
    /// # Errors
    /// `EBUSY` when another job has the container, unless `may_share`: then the packer only reads it. The errors of the file system.
    pub fn new(parts: PackerParts, may_share: bool) -> Result<Self> {
        let (state, snapshots, pieces_moved) = Default::default();
        let packer = Self { parts, may_share, state, snapshots, pieces_moved };
        if unless_missing(packer.plain().stat(CONTAINER))?.is_none() {
            return Ok(packer);
        }
        let mut state = packer.state.lock();
        let store = state.store_or_open(|| packer.open_store())?;
        if store.check().is_ok() {
            packer.renamer(store).finish_interrupted()?;
            let container = store.external.dir.clone();
            packer.promoter(&*container).finish_interrupted(store)?;
        }
        drop(state);
        Ok(packer)
    }

    /// Opens the container, and creates it where there is none.
    fn open_store(&self) -> Result<Store> {
        match self.plain().make(CONTAINER, &Special::Directory(PRIVATE)) {
            Err(fault) if fault.errno != Errno::EEXIST => return Err(fault),
            _ => {}
        }
        Store::open((self.parts.container)()?, &*self.parts.device, self.may_share)
    }

    fn plain(&self) -> &dyn SharedFs {
        &*self.parts.plain
    }

    fn renamer<'a>(&'a self, store: &'a mut Store) -> DirectoryRenamer<'a> {
        DirectoryRenamer { plain: self.plain(), store }
    }

    fn promoter<'a>(&'a self, container: &'a dyn SharedFs) -> Promoter<'a> {
        Promoter { plain: self.plain(), container, pieces: &self.pieces_moved }
    }

    /// Creates a file. `looked`: the client knows that the path was free at this time.
    fn create(&self, file: &NewFile<'_>, looked: Option<Duration>) -> Result<PackReply> {
        let creating = self.begin_create(&mut self.state.lock(), file, looked)?;
        let created = match creating {
            Creating::Created(created) => created,
            Creating::Not(reply) => return Ok(reply),
        };
        self.state.write_with_others(created.entry.address);
        self.state.with_store(|store| store.end_create(&created))?;
        Ok(PackReply::Stat(created.stat))
    }

    /// Since the client's lookups its directory may have been removed, and another agent may have created a file at the path.
    fn begin_create(
        &self,
        state: &mut State,
        file: &NewFile<'_>,
        looked: Option<Duration>,
    ) -> Result<Creating> {
        let path = file.path;
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if state.store.as_mut().is_some_and(|store| store.stat(path).is_ok()) {
            return Err(Errno::EEXIST.into());
        }
        if !self.packs(state, dir) {
            return Ok(Creating::Not(PackReply::Declined));
        }
        let now = monotonic();
        if state.names.may_have(path, looked, now) {
            return Ok(Creating::Not(PackReply::LookupFirst(now)));
        }
        self.check_dir_of(path, &state.names)?;
        state.store_or_open(|| self.open_store())?.begin_create(file).map(Creating::Created)
    }

    /// Changes attributes of a file, except for the times of external content: the client changes those.
    fn change(&self, of: Changed, change: &AttrChange) -> Result<PackReply> {
        let path = match of {
            Changed::Open(file) => return self.change_open(file, change),
            Changed::At(path) => path,
        };
        let file = match &mut self.state.lock().store {
            Some(store) => {
                store.refresh()?;
                store.open_file(&path)?.number
            }
            None => return Err(Errno::ENOENT.into()),
        };
        let changed = self.change_open(file, change);
        let closed = self.state.with_store(|store| store.close_file(file));
        closed.and(changed)
    }

    fn change_open(&self, file: u64, change: &AttrChange) -> Result<PackReply> {
        let (put_at, is_external) = self
            .state
            .with_store(|store| Ok((store.change(file, change)?, store.stat_open(file)?.is_external)))?;
        put_at.map_or(Ok(()), |address| self.state.write_entry(address))?;
        Ok(if is_external { PackReply::External { file } } else { PackReply::Done })
    }

    /// Reads an open file. The state is unlocked while the file system reads.
    fn read(&self, file: u64, offset: u64, length: usize) -> Result<PackReply> {
        let reading = self.state.with_store(|store| match store.stat_open(file)?.is_external {
            true => Ok(None),
            false => store.read(file, offset, length.min(LOCAL_BYTES_MAX)).map(Some),
        })?;
        match reading {
            Some(reading) => Ok(PackReply::Bytes(reading.bytes()?.into())),
            None => Ok(PackReply::External { file }),
        }
    }

    /// Looks up a path that the shared directory lacked a moment ago, and at which no agent has created anything since.
    fn find(&self, path: &[u8]) -> Result<PackReply> {
        let (dir, name) = split(path).ok_or(Errno::ENOENT)?;
        match self.snapshots.lookup(self.plain(), dir, name, monotonic) {
            CachedLookup::Absent => {}
            CachedLookup::Unknown => return Ok(PackReply::LookupFirst(monotonic())),
            CachedLookup::Unavailable => return Ok(PackReply::Declined),
        }
        let State { store, names, .. } = &mut *self.state.lock();
        if names.may_have(path, None, monotonic()) {
            return Ok(PackReply::LookupFirst(monotonic()));
        }
        let Some(store) = store else { return Ok(PackReply::Missing) };
        store.refresh()?;
        Ok(unless_missing(store.stat(path))?.map_or(PackReply::Missing, PackReply::Stat))
    }

    /// Records that an agent has created something at a path of the shared directory, and returns the packed file that it hides.
    fn stat_hidden(&self, path: &[u8]) -> Result<PackReply> {
        let State { store, names, .. } = &mut *self.state.lock();
        names.note(path, monotonic());
        let store = store.as_mut().ok_or(Errno::ENOENT)?;
        store.refresh()?;
        store.stat(path).map(PackReply::Stat)
    }

    fn make_dir(&self, path: &[u8], mode: u16) -> Result<()> {
        let State { store, names, .. } = &mut *self.state.lock();
        let now = monotonic();
        names.note(path, now);
        if let Some(store) = store {
            store.refresh()?;
            if store.stat(path).is_ok() {
                return Err(Errno::EEXIST.into());
            }
            self.renamer(store).clear_for_dir(path)?;
        }
        self.plain().make(path, &Special::Directory(mode))?;
        self.snapshots.made(path, now);
        Ok(())
    }

    fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let State { store, names, .. } = &mut *self.state.lock();
        if let Some(store) = store {
            store.refresh()?;
            if store.has_below(path)? {
                return Err(Errno::ENOTEMPTY.into());
            }
        }
        self.plain().rmdir(path)?;
        names.note_removed(path, monotonic());
        self.snapshots.removed(path);
        Ok(())
    }

    /// Renames a directory with its packed files and its marks.
    fn rename_dir(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // A rename syncs.
        let _one = self.state.lock_syncs();
        let mut state = self.state.lock();
        let State { store, names, marks, .. } = &mut *state;
        let now = monotonic();
        names.note_moved(to, now);
        names.note_removed(from, now);
        if mode == RenameMode::Exchange {
            names.note_moved(from, now);
            names.note_removed(to, now);
        }
        match store {
            Some(store) => self.renamer(store).rename(from, to, mode)?,
            None => self.plain().rename(from, to, mode)?,
        }
        marks.moved(from, to, mode);
        drop(state);
        [from, to].iter().for_each(|dir| self.snapshots.moved(dir));
        Ok(())
    }

    fn packs(&self, state: &State, dir: &[u8]) -> bool {
        state.marks.of(dir).unwrap_or(self.parts.packs)
    }

    /// Checks that the directory of a new path exists.
    fn check_dir_of(&self, path: &[u8], names: &NameChanges) -> Result<()> {
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if names.may_lack_dir_of(path, monotonic()) && !is_dir(self.plain(), dir)? {
            return Err(Errno::ENOENT.into());
        }
        Ok(())
    }

    fn serve_open(&self, request: PackRequest) -> Result<PackReply> {
        let State { store, names, .. } = &mut *self.state.lock();
        let Some(store) = store else { return serve_without_store(&request) };
        store.refresh()?;
        if let PackRequest::Rename { to, .. } = &request {
            self.check_dir_of(to, names)?;
        }
        serve_from(store, self.plain(), self.parts.size_max, request)
    }

    /// Ends the job: makes all changes durable, promotes external files if the job was `drained`, and writes the index. Files that cannot
    /// be promoted stay as they are.
    pub fn finish(&self, drained: bool) -> Result<()> {
        let _one = self.state.lock_syncs();
        let store = self.state.lock().end();
        let Some(mut store) = store else { return Ok(()) };
        if store.is_foreign {
            return Ok(());
        }
        let container = store.external.dir.clone();
        let promoter = self.promoter(&*container);
        let ended = promoter.count(store.end_journal());
        let promoted = if drained && ended.is_ok() { promoter.promote_all(&mut store) } else { Ok(()) };
        store.finish()?;
        ended.and(promoted)
    }

    /// Files, directories and pieces of content that promotions have worked on so far.
    pub fn pieces_moved(&self) -> u64 {
        self.pieces_moved.load(Ordering::Relaxed)
    }

    /// Calls `act` with the store.
    #[cfg(test)]
    pub fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        self.state.with_store(act)
    }
}

impl PackHandler for Packer {
    fn serve(&self, request: PackRequest) -> Result<PackReply> {
        if puts_entry(&request) {
            // A client that is about to write much finds the space of removed files free.
            let is_large = matches!(request, PackRequest::Expect { .. });
            self.state.bound_unsynced(if is_large { 0 } else { REMOVALS_MAX });
        }
        if let PackRequest::Open { path } | PackRequest::Create { path, .. } = &request {
            self.state.await_creation(path)?;
        }
        let done = |()| PackReply::Done;
        match request {
            PackRequest::Packs { dir } => Ok(PackReply::Packs(self.packs(&self.state.lock(), &dir))),
            PackRequest::Mark { dir, packs } => {
                self.state.lock().marks.set(dir, packs);
                Ok(PackReply::Done)
            }
            PackRequest::Create { path, mode, uid, gid, looked } => {
                self.create(&NewFile { path: &path, mode, uid, gid }, looked)
            }
            PackRequest::Named { path } => self.stat_hidden(&path),
            PackRequest::Find { path } => self.find(&path),
            PackRequest::Read { file, offset, length } => self.read(file, offset, length as usize),
            PackRequest::Change { of, change } => self.change(of, &change),
            PackRequest::Sync { file: None } if self.state.lock().store.is_none() => Ok(PackReply::Done),
            PackRequest::Sync { file } => self.state.sync(file),
            PackRequest::MoveDir { from, to, mode } => self.rename_dir(&from, &to, mode).map(done),
            PackRequest::MakeDir { path, mode } => self.make_dir(&path, mode).map(done),
            PackRequest::RemoveDir { path } => self.remove_dir(&path).map(done),
            request => self.serve_open(request),
        }
    }
}
