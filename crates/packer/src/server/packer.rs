//! The packer of a job: serves the requests of all agents for packed files.

use super::directory_rename::DirectoryRenamer;
use super::directory_snapshots::{CachedLookup, DirectorySnapshots};
use super::marks::Marks;
use super::promote::Promoter;
use super::requests::{puts_entry, serve_from, serve_without_store};
use super::state::{SharedState, State};
use super::store::{Created, NewFile, Store};
use super::succession::{CALLS, MARKS, Succession};
use crate::external::OpenContainer;
use crate::recent_lookups::NameChanges;
use crate::{CONTAINER, LOCAL_BYTES_MAX, PackHandler, is_dir, unless_missing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{Changed, PackReply, PackRequest, PackedStat, PackerTime};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{monotonic, random_bytes};
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
    /// The name of the job, if another node may take over from this packer.
    pub job: Option<String>,
}

/// The packer of a job.
pub struct Packer {
    parts: PackerParts,
    may_share: bool,
    succession: Succession,
    /// Its number, which is random.
    number: u64,
    state: SharedState,
    snapshots: DirectorySnapshots,
    pieces_moved: AtomicU64,
}

/// The outcome of the first step of a creation.
enum Creating {
    Created(Created),
    /// An earlier packer has created the file.
    Found(PackedStat),
    /// The file is not created, for this reason.
    Not(PackReply),
}

impl Packer {
    /// The packer of a shared directory. Opens the container if there is one, and finishes what earlier incarnations have begun. One that
    /// `takes_over` continues for another packer of its job, which may hold the lock still, and changes nothing any more.
    ///
    /// # Errors
    /// `EBUSY` when another job has the container, unless `may_share`: then the packer only reads it. The errors of the file system.
    pub fn new(parts: PackerParts, may_share: bool, takes_over: bool) -> Result<Self> {
        let (snapshots, pieces_moved, mut state) = Default::default();
        let number = u64::from_le_bytes(random_bytes()?);
        let succession = match (&parts.job, takes_over) {
            (None, _) => Succession::Only,
            (Some(_), false) => Succession::First,
            (Some(_), true) => Succession::Later,
        };
        if succession == Succession::Later {
            state = SharedState::after_another(monotonic());
        }
        let packer = Self { parts, may_share, succession, number, state, snapshots, pieces_moved };
        if unless_missing(packer.plain().stat(CONTAINER))?.is_none() {
            return Ok(packer);
        }
        let mut state = packer.state.lock();
        let store = state.store_or_open(|| packer.open_store())?;
        if store.check().is_ok() {
            packer.renamer(store).finish_interrupted()?;
            let container = store.external.dir.clone();
            packer.promoter(&*container).finish_interrupted(store)?;
            match succession {
                Succession::Later => state.read_notes()?,
                Succession::Only | Succession::First => store.remove_left()?,
            }
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
        let succession = (self.parts.job.as_deref(), self.succession);
        Store::open((self.parts.container)()?, &*self.parts.device, self.may_share, succession)
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

    fn opened(&self, stat: PackedStat) -> PackReply {
        PackReply::Opened { stat, packer: self.number }
    }

    fn look_first(&self) -> PackReply {
        PackReply::LookupFirst(PackerTime { packer: self.number, time: monotonic() })
    }

    /// Creates a file. `looked`: the client knows that the path was free at this time.
    fn create(&self, file: &NewFile<'_>, looked: Option<PackerTime>) -> Result<PackReply> {
        let creating = self.begin_create(&mut self.state.lock(), file, looked)?;
        let created = match creating {
            Creating::Created(created) => created,
            Creating::Found(stat) => return Ok(self.opened(stat)),
            Creating::Not(reply) => return Ok(reply),
        };
        self.state.write_with_others(created.entry.address);
        self.state.with_store(|store| store.end_create(&created))?;
        Ok(self.opened(created.stat))
    }

    /// Since the client's lookups its directory may have been removed, and another agent may have created a file at the path.
    fn begin_create(
        &self,
        state: &mut State,
        file: &NewFile<'_>,
        looked: Option<PackerTime>,
    ) -> Result<Creating> {
        let path = file.path;
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if let Some(store) = &mut state.store
            && let Ok(there) = store.stat(path)
        {
            return match there.number == file.number {
                true => store.open_file(path).map(Creating::Found),
                false => Err(Errno::EEXIST.into()),
            };
        }
        if !self.packs(state, dir) {
            return Ok(Creating::Not(PackReply::Declined));
        }
        // Another packer had another clock.
        let looked = looked.filter(|looked| looked.packer == self.number).map(|looked| looked.time);
        if state.names.may_have(path, looked, monotonic()) {
            return Ok(Creating::Not(self.look_first()));
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
            CachedLookup::Unknown => return Ok(self.look_first()),
            CachedLookup::Unavailable => return Ok(PackReply::Declined),
        }
        let State { store, names, .. } = &mut *self.state.lock();
        if names.may_have(path, None, monotonic()) {
            return Ok(self.look_first());
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

    /// Notes a request that changes a directory, for a later packer. Returns the inode number in the note of an earlier packer, which may
    /// have executed the request.
    fn begin_call(&self, state: &mut State, call: u64, inode: u64) -> Result<Option<u64>> {
        if self.succession == Succession::Only {
            return Ok(None);
        }
        if let Some(earlier) = state.calls.earlier(call) {
            return Ok(Some(earlier));
        }
        state.calls.add(call, inode);
        let note = state.calls.note();
        let store = state.store_or_open(|| self.open_store())?;
        if store.check().is_ok() {
            store.put_note(CALLS, Some(&note))?;
        }
        Ok(None)
    }

    /// Changes the marks. A later packer has them, too.
    fn change_marks(&self, state: &mut State, change: impl FnOnce(&mut Marks)) -> Result<()> {
        let mut marks = state.marks.clone();
        change(&mut marks);
        if self.succession != Succession::Only && marks != state.marks {
            let store = state.store_or_open(|| self.open_store())?;
            if store.check().is_ok() {
                store.put_note(MARKS, Some(&marks.note()))?;
            }
        }
        state.marks = marks;
        Ok(())
    }

    fn make_dir(&self, call: u64, path: &[u8], mode: u16) -> Result<()> {
        let state = &mut *self.state.lock();
        if self.succession != Succession::Only {
            let is_there = unless_missing(self.plain().stat(path))?.is_some();
            match (state.calls.earlier(call), is_there) {
                (Some(_), true) => return Ok(()),
                (None, true) => return Err(Errno::EEXIST.into()),
                (_, false) => drop(self.begin_call(state, call, 0)?),
            }
        }
        let State { store, names, .. } = state;
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

    fn remove_dir(&self, call: u64, path: &[u8]) -> Result<()> {
        let state = &mut *self.state.lock();
        let is_repeated = self.begin_call(state, call, 0)?.is_some();
        if is_repeated && unless_missing(self.plain().stat(path))?.is_none() {
            return Ok(());
        }
        let State { store, names, .. } = state;
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
    fn rename_dir(&self, call: u64, (from, to): (&[u8], &[u8]), mode: RenameMode) -> Result<()> {
        // A rename syncs.
        let _one = self.state.lock_syncs();
        let mut state = self.state.lock();
        let is_renamed = self.is_renamed(&mut state, call, (from, to))?;
        let State { store, names, .. } = &mut *state;
        let now = monotonic();
        names.note_moved(to, now);
        names.note_removed(from, now);
        if mode == RenameMode::Exchange {
            names.note_moved(from, now);
            names.note_removed(to, now);
        }
        match store {
            _ if is_renamed => {}
            Some(store) => self.renamer(store).rename(from, to, mode)?,
            None => self.plain().rename(from, to, mode)?,
        }
        self.change_marks(&mut state, |marks| marks.moved(from, to, mode))?;
        drop(state);
        [from, to].iter().for_each(|dir| self.snapshots.moved(dir));
        Ok(())
    }

    /// Whether an earlier packer has renamed a directory for this request. Notes the request otherwise.
    fn is_renamed(&self, state: &mut State, call: u64, (from, to): (&[u8], &[u8])) -> Result<bool> {
        if self.succession == Succession::Only {
            return Ok(false);
        }
        let inode = |path| Ok::<_, Fault>(unless_missing(self.plain().stat(path))?.map(|stat| stat.inode));
        let (at_old, at_new) = (inode(from)?, inode(to)?);
        let earlier = self.begin_call(state, call, at_old.unwrap_or(0))?;
        Ok(earlier.is_some() && earlier == at_new)
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
        match request {
            PackRequest::Open { path } => Ok(self.opened(store.open_file(&path)?)),
            PackRequest::Reopen { file, path } => Ok(self.opened(store.reopen_file(file, &path)?)),
            request => serve_from(store, self.plain(), self.parts.size_max, request),
        }
    }

    /// Fails with `ESTALE` if another packer has opened the file that a request writes or syncs: this one lacks what that one has buffered.
    fn check_opener(&self, request: &PackRequest) -> Result<()> {
        match request {
            PackRequest::Write { open, .. } | PackRequest::Sync { open: Some(open) }
                if open.packer != self.number =>
            {
                Err(Fault::new(Errno::ESTALE, "another packer has opened the file"))
            }
            _ => Ok(()),
        }
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
        let ended = promoter.count(store.remove_left().and_then(|()| store.end_journal()));
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
        self.check_opener(&request)?;
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
                self.change_marks(&mut self.state.lock(), |marks| marks.set(dir, packs)).map(done)
            }
            PackRequest::Create { path, number, mode, uid, gid, looked } => {
                self.create(&NewFile { path: &path, number, mode, uid, gid }, looked)
            }
            PackRequest::Named { path } => self.stat_hidden(&path),
            PackRequest::Find { path } => self.find(&path),
            PackRequest::Read { file, offset, length } => self.read(file, offset, length as usize),
            PackRequest::Change { of, change } => self.change(of, &change),
            PackRequest::Sync { open: None } if self.state.lock().store.is_none() => Ok(PackReply::Done),
            PackRequest::Sync { open } => self.state.sync(open.map(|open| open.file)),
            PackRequest::MoveDir { call, from, to, mode } => {
                self.rename_dir(call, (&from, &to), mode).map(done)
            }
            PackRequest::MakeDir { call, path, mode } => self.make_dir(call, &path, mode).map(done),
            PackRequest::RemoveDir { call, path } => self.remove_dir(call, &path).map(done),
            request => self.serve_open(request),
        }
    }
}
