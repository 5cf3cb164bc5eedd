//! Requests with paths.

use super::Call;
use super::convert::{Refusal, Served, Wanted, rename_mode, status_of};
use super::directory_cache::{Directory, Lookup};
use super::session::{OpenFile, Session};
use super::view::RingView;
use super::walk::{PathTarget, READ, SEARCH, WRITE, may};
use crate::arbiter::Gate;
use std::sync::{Arc, OnceLock};
use tameike_client::data::{GrantKey, Grantable};
use tameike_client::vfs::{Found, OpenMode, Opened, Vfs, has_setid};
use tameike_core::attr::{S_ISGID, S_ISVTX};
use tameike_core::wire::meta::NewInode;
use tameike_core::{Attr, Errno, FileKind, Layout};
use tameike_ring::message::{Path, Reply};

/// Returns whether a program may change names in a directory by the owner's bits.
fn may_change(session: &Session, dir: &Attr) -> bool {
    let is_own = dir.mode & S_ISVTX == 0 || dir.uid == session.user;
    may(session, dir, WRITE | SEARCH) && is_own
}

/// Returns whether a program may open a file by the owner's bits.
fn may_open(session: &Session, attr: &Attr, mode: OpenMode) -> bool {
    let bits = if mode.read { READ } else { 0 } | if mode.write { WRITE } else { 0 };
    // The kernel decides whether a write clears set-ID bits.
    let is_harmless = !mode.write || !has_setid(attr.mode);
    let may_skip_atime = !mode.noatime || attr.uid == session.user;
    attr.kind == FileKind::File && may(session, attr, bits) && is_harmless && may_skip_atime
}

impl<V: Vfs> RingView<V> {
    pub(super) async fn status_at(&self, call: &Call, path: &Path, follow: bool) -> Served {
        let PathTarget { dir, name } = self.walk(call.session(), path.at, call.name(path)).await?;
        let Some(name) = name else {
            let attr = self.vfs.getattr(dir.file).await?;
            return Ok(Reply::Status(status_of(dir.file, &attr)));
        };
        let found = self.vfs.lookup(dir.file, name).await?;
        let _held = Lookup::new(&self.vfs, found.file);
        if follow && found.attr.kind == FileKind::Symlink {
            return Err(Refusal::Declined);
        }
        self.vfs.show(found.file);
        Ok(Reply::Status(status_of(found.file, &found.attr)))
    }

    pub(super) async fn open(&self, call: &Call, path: &Path, flags: i32, mode: u32) -> Served {
        let wanted = Wanted::of(flags).ok_or(Refusal::Declined)?;
        let session = call.session();
        let PathTarget { dir, name } = self.walk(session, path.at, call.name(path)).await?;
        let name = name.ok_or(Refusal::Declined)?;
        if !session.can_open() {
            return Err(Refusal::Declined);
        }
        if wanted.create && wanted.exclusive {
            return self.create(session, (&dir, name), mode, wanted).await;
        }
        let changes = self.arbiter.directories();
        match self.vfs.lookup(dir.file, name).await {
            Ok(found) => self.open_found(session, (found, changes), wanted.mode).await,
            Err(fault) if fault.errno == Errno::ENOENT && wanted.create => {
                self.create(session, (&dir, name), mode, wanted).await
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Opens a file that was found when the count of directory changes was `changes`.
    async fn open_found(&self, session: &Session, (found, changes): (Found, u64), mode: OpenMode) -> Served {
        let held = Lookup::new(&self.vfs, found.file);
        if !may_open(session, &found.attr, mode) {
            return Err(Refusal::Declined);
        }
        let gate = self.arbiter.open(found.file).ok_or(Refusal::Declined)?;
        self.arbiter.opened(found.file, false, changes);
        let opened = async {
            // Until a grant is made, too: when the kernel opens the file, the agent revokes grants after requests in flight.
            let _in_flight = gate.begin().ok_or(Refusal::Declined)?;
            if !mode.truncate {
                let opened = self.vfs.open(found.file, mode).await?;
                if !mode.write
                    && let Some((grantable, _)) = self.grantable(&opened, mode)
                {
                    grantable.grant_inline();
                }
                return Ok((opened, found.attr));
            }
            self.arbiter.writes(&gate);
            let opened = self.vfs.open(found.file, mode).await?;
            self.vfs.mark_pages_stale(opened.handle);
            Ok((opened, self.vfs.getattr(found.file).await.unwrap_or(found.attr)))
        };
        match opened.await {
            Ok((opened, attr)) => Ok(self.opened(session, held, mode, opened, &attr, gate)),
            Err(refusal) => {
                self.arbiter.release(found.file);
                Err(refusal)
            }
        }
    }

    async fn create(
        &self,
        session: &Session,
        (dir, name): (&Arc<Directory<V>>, &[u8]),
        mode: u32,
        wanted: Wanted,
    ) -> Served {
        let bits = (mode & 0o7777) as u16;
        // The handover to the kernel needs a file that its owner may open again.
        let is_plain = bits & !0o777 == 0 && bits & (READ | WRITE) == READ | WRITE;
        if !is_plain || !may_change(session, &dir.attr) || dir.attr.mode & S_ISGID != 0 {
            return Err(Refusal::Declined);
        }
        let (new, changes) = (self.new_inode(session, FileKind::File, bits), self.arbiter.directories());
        // Always exclusive: an existing file must pass the gate.
        let (found, opened) = match self.vfs.create(dir.file, name, new, true, wanted.mode).await {
            Ok(created) => created,
            // Another process has created it since the lookup.
            Err(fault) if fault.errno == Errno::EEXIST && !wanted.exclusive => return Err(Refusal::Declined),
            Err(fault) => return Err(fault.into()),
        };
        let held = Lookup::new(&self.vfs, found.file);
        let gate = self.arbiter.hold(found.file);
        self.arbiter.opened(found.file, false, changes);
        self.arbiter.names_changed(dir.file).await;
        Ok(self.opened(session, held, wanted.mode, opened, &found.attr, gate))
    }

    fn opened(
        &self,
        session: &Session,
        held: Lookup<V>,
        mode: OpenMode,
        opened: Opened,
        attr: &Attr,
        gate: Arc<Gate>,
    ) -> Reply {
        let file = held.file;
        held.keep();
        let (view, handle, name) = (self.index, opened.handle, OnceLock::new());
        let (grantable, key) = self.grantable(&opened, mode).unzip();
        let handle = session.add(OpenFile { view, file, handle, mode, grantable, gate, name });
        Reply::Opened { handle, key, status: status_of(file, attr) }
    }

    /// Returns the file's grants, with their key in the frame table, if the file is open for reading.
    fn grantable(&self, opened: &Opened, mode: OpenMode) -> Option<(Grantable, GrantKey)> {
        let grantable = self.vfs.grantable(opened.handle).filter(|_| mode.read)?;
        let key = grantable.key()?;
        Some((grantable, key))
    }

    fn new_inode(&self, session: &Session, kind: FileKind, mode: u16) -> NewInode {
        let (uid, gid) = (session.user, session.group);
        NewInode { kind, mode, uid, gid, rdev: 0, layout: Layout::default(), symlink: Vec::new() }
    }

    pub(super) async fn make_dir(&self, call: &Call, path: &Path, mode: u32) -> Served {
        let session = call.session();
        let PathTarget { dir, name } = self.walk(session, path.at, call.name(path)).await?;
        let name = name.ok_or(Refusal::Declined)?;
        let bits = (mode & 0o7777) as u16;
        if bits & !0o777 != 0 || !may_change(session, &dir.attr) || dir.attr.mode & S_ISGID != 0 {
            return Err(Refusal::Declined);
        }
        let new = self.new_inode(session, FileKind::Directory, bits);
        let made = self.vfs.make(dir.file, name, new).await?;
        drop(Lookup::new(&self.vfs, made.file));
        self.arbiter.names_changed(dir.file).await;
        Ok(Reply::Done)
    }

    pub(super) async fn unlink(&self, call: &Call, path: &Path) -> Served {
        let session = call.session();
        let PathTarget { dir, name } = self.walk(session, path.at, call.name(path)).await?;
        let name = name.ok_or(Refusal::Declined)?;
        self.removable(session, &dir, name).await?.ok_or(Errno::ENOENT)?;
        self.vfs.unlink(dir.file, name).await?;
        self.arbiter.names_changed(dir.file).await;
        Ok(Reply::Done)
    }

    pub(super) async fn rename(&self, call: &Call, (from, to): (&Path, &Path), flags: u32) -> Served {
        let mode = rename_mode(flags).ok_or(Refusal::Declined)?;
        let session = call.session();
        let source = self.walk(session, from.at, call.name(from)).await?;
        let target = self.walk(session, to.at, call.second_name(from)).await?;
        let (Some(name), Some(new_name)) = (source.name, target.name) else {
            return Err(Refusal::Declined);
        };
        let _source = self.removable(session, &source.dir, name).await?.ok_or(Errno::ENOENT)?;
        let _target = self.removable(session, &target.dir, new_name).await?;
        self.vfs.rename((source.dir.file, name), (target.dir.file, new_name), mode).await?;
        self.arbiter.names_changed(source.dir.file).await;
        self.arbiter.names_changed(target.dir.file).await;
        Ok(Reply::Done)
    }

    /// Looks up a name that is to be removed. Declines anything but a regular file that the kernel does not have open; returns `None`
    /// if the name does not exist.
    async fn removable(
        &self,
        session: &Session,
        dir: &Directory<V>,
        name: &[u8],
    ) -> Served<Option<Lookup<V>>> {
        if !may_change(session, &dir.attr) {
            return Err(Refusal::Declined);
        }
        match self.vfs.lookup(dir.file, name).await {
            Ok(found) => {
                let held = Lookup::new(&self.vfs, found.file);
                let is_here =
                    found.attr.kind == FileKind::File && !self.arbiter.is_open_in_kernel(found.file);
                if is_here { Ok(Some(held)) } else { Err(Refusal::Declined) }
            }
            Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }
}
