//! Renames a directory of the shared file system together with the packed files below it.
//!
//! The packer puts a note of the rename in the container first. A later incarnation that finds the note finishes the rename.

use super::APART;
use super::marks::rebased;
use super::store::{SecondName, Store};
use crate::{is_dir, unless_missing};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Result};
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{SharedFs, join};

/// The path of the note, which no file has.
const NOTE: &[u8] = b".tameike-packed/move";

/// Renames directories of a shared directory.
pub struct DirectoryRenamer<'a> {
    /// The shared directory.
    pub plain: &'a dyn SharedFs,
    /// Its packed files.
    pub store: &'a mut Store,
}

impl DirectoryRenamer<'_> {
    /// Renames a directory. Fails with `EINVAL` for an exchange of directories with packed files.
    pub fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // A packed file may be there since the caller's lookup.
        if mode != RenameMode::Exchange && self.store.stat(to).is_ok() {
            let exists = mode == RenameMode::NoReplace;
            return Err(if exists { Errno::EEXIST } else { Errno::ENOTDIR }.into());
        }
        let (has_from, has_to) = (self.store.has_below(from)?, self.store.has_below(to)?);
        if mode == RenameMode::Exchange && (has_from || has_to) {
            return Err(Errno::EINVAL.into());
        }
        if has_to && is_dir(self.plain, to)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        if has_to {
            self.set_apart(to)?;
        }
        if !has_from {
            return self.plain.rename(from, to, mode);
        }
        self.store.put_note(NOTE, Some(&[from, b"\0", to].concat()))?;
        // Second names come first: if the file system is too full for them, nothing has changed.
        let names = self.names_below(from, to)?;
        let named = self.store.add_names(&names).and_then(|()| self.store.sync());
        if let Err(fault) = named.and_then(|()| self.plain.rename(from, to, mode)) {
            self.finish_interrupted()?;
            return Err(fault);
        }
        if let Err(fault) = self.store.drop_first_names(&names) {
            // The new names exist, and nothing is seen below the old one: a later incarnation finishes the rename.
            log::warn!("{}: {fault}", String::from_utf8_lossy(from));
            return Ok(());
        }
        self.store.put_note(NOTE, None)
    }

    /// Finishes, or undoes, a rename that this incarnation or an earlier one has begun.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        let Some(note) = self.store.note(NOTE)? else { return Ok(()) };
        let mut paths = note.split(|&byte| byte == 0);
        let (from, to) = (paths.next().unwrap_or_default(), paths.next().unwrap_or_default());
        if is_dir(self.plain, to)? && !is_dir(self.plain, from)? {
            for (path, new) in self.names_below(from, to)? {
                self.store.rename(&path, &new)?;
            }
            return self.store.put_note(NOTE, None);
        }
        for (new, path) in self.names_below(to, from)? {
            let mut number = |path: &[u8]| self.store.stat(path).ok().map(|stat| stat.number);
            if number(&path).is_some_and(|first| number(&new) == Some(first)) {
                self.store.remove_name(&new)?;
            }
        }
        self.store.put_note(NOTE, None)
    }

    /// The paths of the packed files below a directory, each with its path below another one.
    fn names_below(&self, from: &[u8], to: &[u8]) -> Result<Vec<SecondName>> {
        let paths = self.store.below(from)?.into_iter();
        Ok(paths.filter_map(|path| rebased(&path, from, to).map(|new| (path, new))).collect())
    }

    /// Keeps the packed files below the path of a directory that another program has removed: under names in the container that no view shows.
    fn set_apart(&mut self, path: &[u8]) -> Result<()> {
        let left = self.store.below(path)?;
        let number = u64::from_le_bytes(random_bytes()?);
        let apart = join(APART, format!("{number:016x}").as_bytes());
        left.into_iter().try_for_each(|file| {
            let kept = join(&apart, &file);
            log::warn!(
                "{} is kept as {} in the container: its directory was removed by another program",
                String::from_utf8_lossy(&file),
                String::from_utf8_lossy(&kept)
            );
            self.store.rename(&file, &kept)
        })
    }

    /// Makes sure that no packed file is below a path before a directory is created there. Fails with `EEXIST` if the shared directory has
    /// anything at the path.
    pub fn clear_for_dir(&mut self, path: &[u8]) -> Result<()> {
        if !self.store.has_below(path)? {
            return Ok(());
        }
        match unless_missing(self.plain.stat(path))? {
            Some(_) => Err(Errno::EEXIST.into()),
            None => self.set_apart(path),
        }
    }
}
