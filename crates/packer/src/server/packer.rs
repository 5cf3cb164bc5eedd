//! The packer: answers all agents of a job from the container that it alone adds to.

use super::create::NewFile;
use super::directory_snapshots::{DirectorySnapshots, Known};
use super::marks::Marks;
use super::promote::Moving;
use super::store::Store;
use crate::external::OpenContainer;
use crate::recent::NameChanges;
use crate::{CONTAINER, LOCAL_BYTES_MAX, PackHandler, unless_missing};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{SharedFs, Special, split};

/// So many files that are gone may have content outside until something is synced.
const GONE_MAX: usize = 32;

/// What it works with.
pub struct PackerParts {
    /// The shared directory as others see it.
    pub plain: Arc<dyn SharedFs>,
    /// Opens the directory of the container, which is there.
    pub container: OpenContainer,
    /// A directory that outlives this process, on its own node.
    pub device: Arc<dyn SharedFs>,
    /// Whether files are packed of whose directory nobody has said anything.
    pub packs: bool,
    /// Content of larger files is outside of the container.
    pub size_max: u64,
}

/// Permissions of the container's directory: who reads the container reads all files in it, whatever their own permissions.
const PRIVATE: u16 = 0o700;

/// The packer of a job.
pub struct Packer {
    parts: PackerParts,
    may_share: bool,
    pub(crate) state: Mutex<State>,
    snapshots: DirectorySnapshots,
    /// One sync at a time.
    pub(crate) syncing: Mutex<()>,
    /// One write for entries that makers of files, and who changes their attributes, wait for.
    pub(crate) writing: Mutex<()>,
    pieces_moved: AtomicU64,
}

#[derive(Default)]
pub(crate) struct State {
    /// From the first need of it on, until the job ends.
    pub(crate) store: Option<Store>,
    has_ended: bool,
    marks: Marks,
    pub(crate) named: NameChanges,
}

impl Packer {
    /// The packer of a shared directory. A container that is there is opened, and what was begun there is ended.
    ///
    /// # Errors
    /// `EBUSY` when another job has the container and `may_share` is not said, with which nothing can be changed then; and what the file
    /// system says.
    pub fn new(parts: PackerParts, may_share: bool) -> Result<Self> {
        let (state, snapshots, syncing, writing, pieces_moved) = Default::default();
        let packer = Self { parts, may_share, state, snapshots, syncing, writing, pieces_moved };
        match packer.parts.plain.stat(CONTAINER) {
            Ok(_) => {}
            Err(fault) if fault.errno == Errno::ENOENT => return Ok(packer),
            Err(fault) => return Err(fault),
        }
        let mut state = packer.state.lock();
        let store = packer.store(&mut state)?;
        if store.check().is_ok() {
            packer.end_move(store)?;
            let container = store.fs.clone();
            packer.moving(&*container).end_out(store)?;
        }
        drop(state);
        Ok(packer)
    }

    pub(crate) fn store<'a>(&self, state: &'a mut State) -> Result<&'a mut Store> {
        let store = match state.store.take() {
            Some(store) => store,
            None if state.has_ended => return Err(Fault::new(Errno::ESTALE, "the job has ended")),
            None => {
                match self.parts.plain.make(CONTAINER, &Special::Directory(PRIVATE)) {
                    Err(fault) if fault.errno != Errno::EEXIST => return Err(fault),
                    _ => {}
                }
                Store::open((self.parts.container)()?, &*self.parts.device, self.may_share)?
            }
        };
        Ok(state.store.insert(store))
    }

    /// What is at a path where the shared directory had nothing a moment ago, and no agent has made anything since.
    fn find(&self, path: &[u8]) -> Result<PackReply> {
        let (dir, name) = split(path).ok_or(Errno::ENOENT)?;
        match self.snapshots.look(self.plain(), dir, name, monotonic) {
            Known::Lacking => {}
            Known::Unknown => return Ok(PackReply::Look(monotonic())),
            Known::Resting => return Ok(PackReply::Declined),
        }
        let State { store, named, .. } = &mut *self.state.lock();
        if named.may_have(path, None, monotonic()) {
            return Ok(PackReply::Look(monotonic()));
        }
        let Some(store) = store else { return Ok(PackReply::Missing) };
        store.look_again()?;
        Ok(unless_missing(store.stat(path))?.map_or(PackReply::Missing, PackReply::Stat))
    }

    /// Makes a directory, in which nothing is.
    fn make_dir(&self, path: &[u8], mode: u16) -> Result<()> {
        let State { store, named, .. } = &mut *self.state.lock();
        let now = monotonic();
        named.note(path, now);
        if let Some(store) = store {
            store.look_again()?;
            if store.stat(path).is_ok() {
                return Err(Errno::EEXIST.into());
            }
            self.clear_for_dir(store, path)?;
        }
        self.plain().make(path, &Special::Directory(mode))?;
        self.snapshots.made(path, now);
        Ok(())
    }

    /// Removes a directory in which nothing is, here neither.
    fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let state = &mut *self.state.lock();
        if let Some(store) = &mut state.store {
            store.look_again()?;
            if store.has_below(path)? {
                return Err(Errno::ENOTEMPTY.into());
            }
        }
        self.plain().rmdir(path)?;
        state.named.note_gone(path, monotonic());
        self.snapshots.removed(path);
        Ok(())
    }

    /// A directory gets another name, with what was said of it.
    fn move_marked(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // It syncs, and of two syncs at a time only one is told what has failed.
        let _one = self.syncing.lock();
        let State { store, marks, named, .. } = &mut *self.state.lock();
        let now = monotonic();
        named.note_moved(to, now);
        named.note_gone(from, now);
        if mode == RenameMode::Exchange {
            named.note_moved(from, now);
            named.note_gone(to, now);
        }
        match store {
            Some(store) => self.move_dir(store, from, to, mode)?,
            None => self.plain().rename(from, to, mode)?,
        }
        marks.moved(from, to, mode);
        Ok(())
    }

    pub(crate) fn packs(&self, state: &State, dir: &[u8]) -> bool {
        state.marks.of(dir).unwrap_or(self.parts.packs)
    }

    /// Where a file is to come, its directory is there.
    pub(crate) fn check_dir_of(&self, path: &[u8], named: &NameChanges) -> Result<()> {
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if named.may_lack_dir_of(path, monotonic()) && !self.is_dir(dir)? {
            return Err(Errno::ENOENT.into());
        }
        Ok(())
    }

    /// What is asked where nothing is packed.
    fn without_store(&self, request: PackRequest) -> Result<PackReply> {
        match request {
            PackRequest::List { .. } => Ok(PackReply::Names(Vec::new())),
            PackRequest::Forget => Ok(PackReply::Done),
            PackRequest::Close { .. }
            | PackRequest::Look { .. }
            | PackRequest::Write { .. }
            | PackRequest::Truncate { .. }
            | PackRequest::Expect { .. } => Err(Errno::ESTALE.into()),
            PackRequest::Stat { .. }
            | PackRequest::Open { .. }
            | PackRequest::Change { .. }
            | PackRequest::Unlink { .. }
            | PackRequest::Rename { .. } => Err(Errno::ENOENT.into()),
            other => Err(unexpected(&other)),
        }
    }

    fn stored(&self, store: &mut Store, request: PackRequest) -> Result<PackReply> {
        let done = |done: Result<()>| done.map(|()| PackReply::Done);
        if let Some((file, size)) = reach_of(store, &request)?
            && self.goes_outside(store, file, size)?
        {
            return Ok(PackReply::Outside { file });
        }
        match request {
            PackRequest::Stat { path } => store.stat(&path).map(PackReply::Stat),
            PackRequest::List { dir, after } => {
                let names = store.names(&dir, &after)?;
                Ok(PackReply::Names(names.into_iter().map(|(name, file)| (name.into(), file)).collect()))
            }
            PackRequest::Open { path } => store.open_file(&path).map(PackReply::Stat),
            PackRequest::Close { file } => done(store.close_file(file)),
            PackRequest::Look { file } => store.look(file).map(PackReply::Stat),
            PackRequest::Write { file, offset, bytes } => done(store.write(file, &bytes, offset)),
            PackRequest::Truncate { file, size } => done(store.truncate(file, size)),
            PackRequest::Expect { .. } => Ok(PackReply::Done),
            PackRequest::Forget => done(store.forget_pages()),
            PackRequest::Unlink { path } => done(store.unlink(&path)),
            PackRequest::Rename { from, to, mode } => {
                match mode {
                    RenameMode::Exchange => return Err(Errno::EINVAL.into()),
                    RenameMode::NoReplace if store.stat(&to).is_ok() => return Err(Errno::EEXIST.into()),
                    RenameMode::NoReplace | RenameMode::Replace => {}
                }
                done(store.rename(&from, &to))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Does something with the container.
    pub(crate) fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        match &mut self.state.lock().store {
            Some(store) => act(store),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// What brings files out of this container.
    fn moving<'a>(&'a self, container: &'a dyn SharedFs) -> Moving<'a> {
        Moving { plain: self.plain(), container, pieces: &self.pieces_moved }
    }

    /// The shared directory as others see it.
    pub(crate) fn plain(&self) -> &dyn SharedFs {
        &*self.parts.plain
    }

    /// The largest file whose content is in the container.
    pub(crate) fn size_max(&self) -> u64 {
        self.parts.size_max
    }

    /// The job has ended: all is made safe, and the index is written. Where all of it is drained, files whose content is outside come
    /// to their places before. Those that could not stay as they are.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(&self, drained: bool) -> Result<()> {
        let _one = self.syncing.lock();
        let store = {
            let mut state = self.state.lock();
            state.has_ended = true;
            state.store.take()
        };
        let Some(mut store) = store else { return Ok(()) };
        if store.is_foreign() {
            return Ok(());
        }
        let container = store.fs.clone();
        let moving = self.moving(&*container);
        let safe = moving.count(store.end_journal());
        let is_ended = drained && safe.is_ok();
        let moved = if is_ended { moving.move_out(&mut store) } else { Ok(()) };
        store.finish()?;
        safe.and(moved)
    }

    /// Files, directories and pieces of content so far of which something was done to bring files to their places.
    pub fn pieces_moved(&self) -> u64 {
        self.pieces_moved.load(Ordering::Relaxed)
    }

    /// Whether a directory is there.
    pub(crate) fn is_dir(&self, path: &[u8]) -> Result<bool> {
        match self.parts.plain.stat(path) {
            Ok(stat) => Ok(stat.kind == FileKind::Directory),
            Err(fault) if fault.errno == Errno::ENOENT => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}

impl PackHandler for Packer {
    fn serve(&self, request: PackRequest) -> Result<PackReply> {
        if changes_names(&request) {
            // Whoever is about to write much finds the room of what is gone.
            self.bound_unsafe(if matches!(request, PackRequest::Expect { .. }) { 0 } else { GONE_MAX });
        }
        if let PackRequest::Open { path } | PackRequest::Create { path, .. } = &request {
            self.await_maker(path)?;
        }
        match request {
            PackRequest::Packs { dir } => Ok(PackReply::Packs(self.packs(&self.state.lock(), &dir))),
            PackRequest::Mark { dir, packs } => {
                self.state.lock().marks.set(dir, packs);
                Ok(PackReply::Done)
            }
            PackRequest::Create { path, mode, uid, gid, looked } => {
                self.create(&NewFile { path: &path, mode, uid, gid }, looked)
            }
            PackRequest::Named { path } => {
                let State { store, named, .. } = &mut *self.state.lock();
                named.note(&path, monotonic());
                let store = store.as_mut().ok_or(Errno::ENOENT)?;
                store.look_again()?;
                store.stat(&path).map(PackReply::Stat)
            }
            PackRequest::Find { path } => self.find(&path),
            PackRequest::Read { file, offset, length } => {
                let length = (length as usize).min(LOCAL_BYTES_MAX);
                // Others are served while the file system is asked.
                let reading = self.with_store(|store| {
                    if store.look(file)?.is_outside {
                        Ok(None)
                    } else {
                        store.read(file, offset, length).map(Some)
                    }
                })?;
                match reading {
                    Some(reading) => Ok(PackReply::Bytes(reading.bytes()?.into())),
                    None => Ok(PackReply::Outside { file }),
                }
            }
            PackRequest::Change { of, change } => self.change(of, &change),
            PackRequest::Sync { file: None } if self.state.lock().store.is_none() => Ok(PackReply::Done),
            PackRequest::Sync { file } => self.sync(file),
            PackRequest::MoveDir { from, to, mode } => {
                self.move_marked(&from, &to, mode)?;
                [from, to].iter().for_each(|dir| self.snapshots.moved(dir));
                Ok(PackReply::Done)
            }
            PackRequest::MakeDir { path, mode } => self.make_dir(&path, mode).map(|()| PackReply::Done),
            PackRequest::RemoveDir { path } => self.remove_dir(&path).map(|()| PackReply::Done),
            request => {
                let State { store, named, .. } = &mut *self.state.lock();
                let Some(store) = store else { return self.without_store(request) };
                store.look_again()?;
                if let PackRequest::Rename { to, .. } = &request {
                    self.check_dir_of(to, named)?;
                }
                self.stored(store, request)
            }
        }
    }
}

/// Whether an entry is put for it.
fn changes_names(request: &PackRequest) -> bool {
    matches!(
        request,
        PackRequest::Create { .. }
            | PackRequest::Change { .. }
            | PackRequest::Close { .. }
            | PackRequest::Truncate { .. }
            | PackRequest::Expect { .. }
            | PackRequest::Unlink { .. }
            | PackRequest::Rename { .. }
    )
}

/// The file whose content is about to change, and how far it will reach.
fn reach_of(store: &mut Store, request: &PackRequest) -> Result<Option<(u64, u64)>> {
    Ok(match request {
        PackRequest::Write { file, offset, bytes } => {
            let offset = offset.map_or_else(|| store.look(*file).map(|stat| stat.size), Ok)?;
            Some((*file, offset.saturating_add(bytes.len() as u64)))
        }
        PackRequest::Truncate { file, size } | PackRequest::Expect { file, size } => Some((*file, *size)),
        _ => None,
    })
}

/// Those that are served otherwise.
fn unexpected(request: &PackRequest) -> Fault {
    Fault::new(Errno::EPROTO, format!("the packer was asked out of turn: {request:?}"))
}
