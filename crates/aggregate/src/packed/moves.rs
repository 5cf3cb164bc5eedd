//! A directory of the shared file system gets another name, with what is packed below it.
//!
//! The container says beforehand what is to be done: who finds that it was begun ends it.

use super::APART;
use super::packer::{Packer, rebased};
use super::store::Store;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::{random_bytes, wall};
use tameike_io::shared::{Special, join};
use tameike_store::container::{Content, Node};

/// A path that no file has, where it is said.
const MOVE: &[u8] = b".tameike-packed/move";

impl Packer {
    pub(super) fn move_dir(&self, store: &mut Store, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
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
        if let Err(fault) = self.plain().rename(from, to, mode) {
            store.note(MOVE, None)?;
            return Err(fault);
        }
        rename_below(store, from, to)
    }

    /// Ends what another life of the packer has begun.
    pub(super) fn end_move(&self, store: &mut Store) -> Result<()> {
        let Some(noted) = store.noted(MOVE)? else { return Ok(()) };
        let mut paths = noted.split(|&byte| byte == 0);
        let (from, to) = (paths.next().unwrap_or_default(), paths.next().unwrap_or_default());
        if self.is_dir(to)? && !self.is_dir(from)? {
            return rename_below(store, from, to);
        }
        store.note(MOVE, None)
    }
}

fn rename_below(store: &mut Store, from: &[u8], to: &[u8]) -> Result<()> {
    for path in store.below(from)? {
        if let Some(path_now) = rebased(&path, from, to) {
            store.rename(&path, &path_now)?;
        }
    }
    store.note(MOVE, None)
}

impl Packer {
    /// What is packed below the path of a directory that is not there is of one that others have taken away: it is kept apart.
    pub(super) fn set_apart(&self, store: &mut Store, path: &[u8]) -> Result<()> {
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

    /// Makes a directory, in which nothing is.
    pub(super) fn make_dir(&self, store: &mut Store, path: &[u8], mode: u16) -> Result<()> {
        if store.has_below(path)? {
            match self.plain().stat(path) {
                Ok(_) => return Err(Errno::EEXIST.into()),
                Err(fault) if fault.errno == Errno::ENOENT => self.set_apart(store, path)?,
                Err(fault) => return Err(fault),
            }
        }
        self.plain().make(path, &Special::Directory(mode)).map(drop)
    }
}

impl Store {
    /// Notes something at a path that is no file's, or nothing any more.
    ///
    /// # Errors
    /// What the file system says.
    fn note(&mut self, path: &[u8], noted: Option<&[u8]>) -> Result<()> {
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
    fn noted(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let entry = self.container.find(path)?;
        entry.map(|entry| Ok(self.container.open_entry(&entry)?.node().target.clone())).transpose()
    }
}
