//! A directory of the shared file system gets another name, with what is packed below it.
//!
//! The container says beforehand what is to be done: who finds that it was begun ends it.

use super::APART;
use super::marks::rebased;
use super::packer::Packer;
use super::store::Store;
use tameike_container::{Content, IndexEntry, Node, check_path};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::{random_bytes, wall};
use tameike_io::shared::join;

/// A path that no file has, where it is said.
const MOVE: &[u8] = b".tameike-packed/move";

impl Packer {
    pub(crate) fn move_dir(&self, store: &mut Store, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // Made since its mover has looked.
        if mode != RenameMode::Exchange && store.stat(to).is_ok() {
            let exists = mode == RenameMode::NoReplace;
            return Err(if exists { Errno::EEXIST } else { Errno::ENOTDIR }.into());
        }
        let (has_from, has_to) = (store.has_below(from)?, store.has_below(to)?);
        if mode == RenameMode::Exchange && (has_from || has_to) {
            return Err(Errno::EINVAL.into());
        }
        if has_to && self.is_dir(to)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        if has_to {
            self.set_apart(store, to)?;
        }
        if !has_from {
            return self.plain().rename(from, to, mode);
        }
        store.note(MOVE, Some(&[from, b"\0", to].concat()))?;
        // The new names are there before: where there is no room for them, nothing has changed.
        let names = names_below(store, from, to)?;
        let named = store.name_also(&names).and_then(|()| store.sync());
        if let Err(fault) = named.and_then(|()| self.plain().rename(from, to, mode)) {
            self.end_move(store)?;
            return Err(fault);
        }
        if let Err(fault) = store.drop_old(&names) {
            // The new names are there, and nothing is seen below the old one: it is ended by a later life of the packer.
            log::warn!("{}: {fault}", String::from_utf8_lossy(from));
            return Ok(());
        }
        store.note(MOVE, None)
    }

    /// Ends what was begun, in another life of the packer or in this one.
    pub(crate) fn end_move(&self, store: &mut Store) -> Result<()> {
        let Some(noted) = store.noted(MOVE)? else { return Ok(()) };
        let mut paths = noted.split(|&byte| byte == 0);
        let (from, to) = (paths.next().unwrap_or_default(), paths.next().unwrap_or_default());
        if self.is_dir(to)? && !self.is_dir(from)? {
            for (path, path_now) in names_below(store, from, to)? {
                store.rename(&path, &path_now)?;
            }
            return store.note(MOVE, None);
        }
        for (path_now, path) in names_below(store, to, from)? {
            let is_same = |first: PackedStat, second: PackedStat| first.number == second.number;
            let number = |store: &mut Store, path: &[u8]| store.stat(path).ok();
            if number(store, &path).zip(number(store, &path_now)).is_some_and(|(old, new)| is_same(old, new))
            {
                store.unname(&path_now)?;
            }
        }
        store.note(MOVE, None)
    }
}

/// Paths of files below a directory, each with that below another one.
fn names_below(store: &Store, from: &[u8], to: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let paths = store.below(from)?.into_iter();
    Ok(paths.filter_map(|path| rebased(&path, from, to).map(|path_now| (path, path_now))).collect())
}

impl Packer {
    /// What is packed below the path of a directory that is not there is of one that others have taken away: it is kept apart.
    pub(crate) fn set_apart(&self, store: &mut Store, path: &[u8]) -> Result<()> {
        let left = store.below(path)?;
        let number = u64::from_le_bytes(random_bytes()?);
        let apart = join(APART, format!("{number:016x}").as_bytes());
        left.into_iter().try_for_each(|file| {
            let kept = join(&apart, &file);
            log::warn!(
                "{} is kept as {} in the container: its directory was removed by another program",
                String::from_utf8_lossy(&file),
                String::from_utf8_lossy(&kept)
            );
            store.rename(&file, &kept)
        })
    }

    /// Where a directory is to be made nothing is packed below its path then.
    pub(crate) fn clear_for_dir(&self, store: &mut Store, path: &[u8]) -> Result<()> {
        if !store.has_below(path)? {
            return Ok(());
        }
        match self.plain().stat(path) {
            Ok(_) => Err(Errno::EEXIST.into()),
            Err(fault) if fault.errno == Errno::ENOENT => self.set_apart(store, path),
            Err(fault) => Err(fault),
        }
    }
}

impl Store {
    /// Gives files second names; none where one finds no room.
    fn name_also(&mut self, names: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let mut put = Vec::new();
        self.begin()?;
        for (path, path_now) in names {
            match self.put_again(path, path_now) {
                Ok(entry) => put.push((entry, None)),
                Err(fault) => {
                    self.undo(&put);
                    return Err(fault);
                }
            }
        }
        self.hand_over(&put)
    }

    fn put_again(&mut self, path: &[u8], path_now: &[u8]) -> Result<IndexEntry> {
        check_path(path_now)?;
        if let Some(number) = self.paths.get(path).copied() {
            self.publish(number)?;
        }
        let before = self.entry(path)?;
        let node = self.node_of(&before)?;
        self.make_room()?;
        self.put(path_now, Some(node))
    }

    /// Takes their first names from files that have second ones.
    fn drop_old(&mut self, names: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let mut dropped = self.begin();
        for (path, path_now) in names {
            self.follow(path, path_now);
            dropped = dropped.and_then(|()| self.make_room()).and_then(|()| self.put(path, None).map(drop));
        }
        dropped.and_then(|()| self.write_pending())
    }

    /// Notes something at a path that is no file's, or nothing any more.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn note(&mut self, path: &[u8], noted: Option<&[u8]>) -> Result<()> {
        self.begin()?;
        let before = self.container.find(path)?;
        let now = wall();
        let node = noted.map(|noted| Node {
            kind: FileKind::Symlink,
            mode: 0o777,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            target: noted.to_vec(),
            xattrs: Vec::new(),
            size: 0,
            content: Content::Here,
        });
        let entry = self.put(path, node)?;
        self.hand_over(&[(entry, before)])
    }

    /// What was noted at a path.
    ///
    /// # Errors
    /// `EIO` when that is damaged.
    pub(crate) fn noted(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let entry = self.container.find(path)?;
        entry.map(|entry| Ok(self.container.node(&entry)?.target)).transpose()
    }
}
