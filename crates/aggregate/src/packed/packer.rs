//! The packer: answers all agents of a job from the container that it alone adds to.

use super::CONTAINER;
use super::outward::{end_out, move_out};
use super::store::Store;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{Changed, PACKED_BYTES_MAX, PackReply, PackRequest};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::{SharedFs, Special, split};

/// What it works with.
pub struct PackerParts {
    /// The shared directory as others see it.
    pub plain: Arc<dyn SharedFs>,
    /// Opens the directory of the container, which is there.
    pub container: Box<dyn Fn() -> Result<Arc<dyn SharedFs>> + Send + Sync>,
    /// Whether files are packed of whose directory nobody has said anything.
    pub packs: bool,
    /// Larger files are moved out when the job ends.
    pub size_max: u64,
}

/// The packer of a job.
pub struct Packer {
    parts: PackerParts,
    may_share: bool,
    state: Mutex<State>,
    /// One sync at a time.
    pub(super) syncing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// From the first need of it on.
    store: Option<Store>,
    /// What was said of directories.
    marks: BTreeMap<Vec<u8>, bool>,
}

impl Packer {
    /// The packer of a shared directory. A container that is there is opened, and what was begun there is ended.
    ///
    /// # Errors
    /// `EBUSY` when another job has the container and `may_share` is not said, with which nothing can be changed then; and what the file
    /// system says.
    pub fn new(parts: PackerParts, may_share: bool) -> Result<Self> {
        let packer = Self { parts, may_share, state: Mutex::default(), syncing: Mutex::default() };
        if packer.parts.plain.stat(CONTAINER).is_ok() {
            let mut state = packer.state.lock();
            let store = packer.store(&mut state)?;
            if !store.is_foreign() {
                packer.end_move(store)?;
                end_out(packer.plain(), store)?;
            }
        }
        Ok(packer)
    }

    fn store<'a>(&self, state: &'a mut State) -> Result<&'a mut Store> {
        let store = match state.store.take() {
            Some(store) => store,
            None => {
                match self.parts.plain.make(CONTAINER, &Special::Directory(0o755)) {
                    Err(fault) if fault.errno != Errno::EEXIST => return Err(fault),
                    _ => {}
                }
                Store::open((self.parts.container)()?, self.may_share)?
            }
        };
        Ok(state.store.insert(store))
    }

    /// Serves one request; it blocks.
    ///
    /// # Errors
    /// What the file system says, and what the calls of the same names do.
    pub fn serve(&self, request: PackRequest) -> Result<PackReply> {
        // It syncs, and of two syncs at a time only one is told what has failed.
        let _one = matches!(&request, PackRequest::MoveDir { .. }).then(|| self.syncing.lock());
        let mut state = self.state.lock();
        if let PackRequest::Packs { dir } = &request {
            return Ok(PackReply::Packs(self.packs(&state, dir)));
        }
        if let PackRequest::Mark { dir, packs } = request {
            match packs {
                Some(packs) => state.marks.insert(dir, packs),
                None => state.marks.remove(&dir),
            };
            return Ok(PackReply::Done);
        }
        if let PackRequest::Create { path, mode, uid, gid } = request {
            return self.create(&mut state, &path, mode, (uid, gid));
        }
        if state.store.is_none() {
            // Nothing was packed yet.
            return self.without_store(request);
        }
        if let PackRequest::Sync { file } = request {
            drop(state);
            return self.sync(file).map(|()| PackReply::Done);
        }
        if let PackRequest::MoveDir { from, to, .. } = &request {
            let moved: Vec<_> = state.marks.iter().map(|(dir, packs)| (dir.clone(), *packs)).collect();
            let (from, to) = (from.clone(), to.clone());
            let reply = self.stored(self.store(&mut state)?, request)?;
            for (dir, packs) in moved {
                if let Some(dir_now) = rebased(&dir, &from, &to) {
                    state.marks.remove(&dir);
                    state.marks.insert(dir_now, packs);
                }
            }
            return Ok(reply);
        }
        let store = self.store(&mut state)?;
        store.look_again()?;
        self.stored(store, request)
    }

    fn packs(&self, state: &State, dir: &[u8]) -> bool {
        let mut dir = dir;
        loop {
            if let Some(packs) = state.marks.get(dir) {
                return *packs;
            }
            match split(dir) {
                Some((above, _)) => dir = above,
                None => return self.parts.packs,
            }
        }
    }

    fn create(&self, state: &mut State, path: &[u8], mode: u16, owner: (u32, u32)) -> Result<PackReply> {
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if let Some(store) = &mut state.store
            && store.stat(path).is_ok()
        {
            return Err(Errno::EEXIST.into());
        }
        if !self.packs(state, dir) {
            return Ok(PackReply::Declined);
        }
        self.store(state)?.create(path, mode, owner).map(PackReply::Stat)
    }

    /// What is asked where nothing is packed.
    fn without_store(&self, request: PackRequest) -> Result<PackReply> {
        let plain = &self.parts.plain;
        match request {
            PackRequest::List { .. } => Ok(PackReply::Names(Vec::new())),
            PackRequest::Sync { file: None } | PackRequest::Forget => Ok(PackReply::Done),
            PackRequest::MakeDir { path, mode } => {
                plain.make(&path, &Special::Directory(mode)).map(|_| PackReply::Done)
            }
            PackRequest::RemoveDir { path } => plain.rmdir(&path).map(|()| PackReply::Done),
            PackRequest::MoveDir { from, to, mode } => {
                plain.rename(&from, &to, mode).map(|()| PackReply::Done)
            }
            PackRequest::Packs { .. } | PackRequest::Mark { .. } | PackRequest::Create { .. } => {
                Err(Errno::EPROTO.into())
            }
            PackRequest::Close { .. }
            | PackRequest::Look { .. }
            | PackRequest::Read { .. }
            | PackRequest::Write { .. }
            | PackRequest::Truncate { .. }
            | PackRequest::Sync { file: Some(_) } => Err(Errno::ESTALE.into()),
            PackRequest::Stat { .. }
            | PackRequest::Open { .. }
            | PackRequest::Change { .. }
            | PackRequest::Unlink { .. }
            | PackRequest::Rename { .. } => Err(Errno::ENOENT.into()),
        }
    }

    fn stored(&self, store: &mut Store, request: PackRequest) -> Result<PackReply> {
        let done = |done: Result<()>| done.map(|()| PackReply::Done);
        match request {
            PackRequest::Stat { path } => store.stat(&path).map(PackReply::Stat),
            PackRequest::List { dir, after } => {
                let names = store.names(&dir, &after)?;
                Ok(PackReply::Names(names.into_iter().map(|(name, file)| (name.into(), file)).collect()))
            }
            PackRequest::Open { path } => store.open_file(&path).map(PackReply::Stat),
            PackRequest::Close { file } => done(store.close_file(file)),
            PackRequest::Look { file } => store.look(file).map(PackReply::Stat),
            PackRequest::Read { file, offset, length } => {
                let length = length.min(PACKED_BYTES_MAX as u32);
                Ok(PackReply::Bytes(store.read(file, offset, length)?.into()))
            }
            PackRequest::Write { file, offset, bytes } => done(store.write(file, &bytes, offset)),
            PackRequest::Truncate { file, size } => done(store.truncate(file, size)),
            PackRequest::Change { of: Changed::Open(file), change } => done(store.change(file, &change)),
            PackRequest::Change { of: Changed::At(path), change } => {
                let file = store.open_file(&path)?.number;
                let changed = store.change(file, &change);
                let closed = store.close_file(file);
                done(changed.and(closed))
            }
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
            PackRequest::MakeDir { path, mode } => done(self.make_dir(store, &path, mode)),
            PackRequest::RemoveDir { path } => {
                if store.has_below(&path)? {
                    return Err(Errno::ENOTEMPTY.into());
                }
                done(self.parts.plain.rmdir(&path))
            }
            PackRequest::MoveDir { from, to, mode } => done(self.move_dir(store, &from, &to, mode)),
            PackRequest::Packs { .. }
            | PackRequest::Mark { .. }
            | PackRequest::Create { .. }
            | PackRequest::Sync { .. } => Err(Errno::EPROTO.into()),
        }
    }

    /// Does something with the container.
    pub(super) fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        match &mut self.state.lock().store {
            Some(store) => act(store),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// The shared directory as others see it.
    pub(super) fn plain(&self) -> &dyn SharedFs {
        &*self.parts.plain
    }

    /// The job has ended: all is made safe, and the index is written. Where all of it is drained, what has grown too large is moved
    /// out before. What could not be moved out stays packed.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(&self, drained: bool) -> Result<()> {
        let _one = self.syncing.lock();
        let Some(mut store) = self.state.lock().store.take() else { return Ok(()) };
        if store.is_foreign() {
            return Ok(());
        }
        let moved = if drained { move_out(self.plain(), &mut store, self.parts.size_max) } else { Ok(()) };
        store.finish()?;
        moved
    }

    /// Whether a directory is there.
    pub(super) fn is_dir(&self, path: &[u8]) -> Result<bool> {
        match self.parts.plain.stat(path) {
            Ok(stat) => Ok(stat.kind == FileKind::Directory),
            Err(fault) if fault.errno == Errno::ENOENT => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}

/// Where what was at a path is, when a directory was renamed.
pub(super) fn rebased(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with(b"/")).then(|| [to, rest].concat())
}
