//! Changes the names of packed files.

use super::Store;
use crate::server::entry_log::Replaced;
use tameike_container::{IndexEntry, Node, check_path};
use tameike_core::{FileKind, Result};
use tameike_io::os::process::wall;

/// The path of a file, and the second name that it gets.
pub type SecondName = (Vec<u8>, Vec<u8>);

impl Store {
    /// Removes a file. Its open files stay open until they are closed.
    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let removed = self.stat(path)?;
        self.remove_name(path)?;
        self.drop_external(&removed);
        Ok(())
    }

    /// Removes a name of a file.
    pub fn remove_name(&mut self, path: &[u8]) -> Result<()> {
        let before = self.log.entry(path)?;
        self.begin()?;
        self.log.make_readable(&before)?;
        let removed = self.log.put(path, None)?;
        self.log.commit(&[(removed, Some(before))])?;
        self.forget_name(path);
        Ok(())
    }

    /// The open file that was at a path stays open without one.
    pub(super) fn forget_name(&mut self, path: &[u8]) {
        self.log.forget_attributes(path);
        self.files.remove_path(path);
    }

    /// Renames a file, and replaces the packed file that has the new name.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(to)?;
        self.log.entry(from)?;
        self.begin()?;
        if let Some(number) = self.files.number_at(from) {
            self.publish(number)?;
        }
        let before = self.log.entry(from)?;
        if from == to {
            return Ok(());
        }
        let (renamed, gone) = (self.stat(from)?, self.stat(to).ok());
        let replaced = self.log.entry(to).ok();
        if let Some(replaced) = &replaced {
            self.log.make_readable(replaced)?;
        }
        let node = self.log.node_of(&before)?;
        let new = self.log.put(to, Some(node))?;
        let old = match self.log.put(from, None) {
            Ok(old) => old,
            Err(fault) => {
                self.log.undo(&[(new, replaced)]);
                return Err(fault);
            }
        };
        self.log.commit(&[(old, Some(before)), (new, replaced)])?;
        self.forget_name(to);
        self.move_name(from, to);
        // While a directory is renamed, both may be names of one file.
        gone.filter(|gone| gone.number != renamed.number).iter().for_each(|gone| self.drop_external(gone));
        Ok(())
    }

    /// The open file at a path continues at another one.
    fn move_name(&mut self, from: &[u8], to: &[u8]) {
        self.log.forget_attributes(from);
        self.files.rename(from, to);
    }

    /// Gives files second names, each after its first; none where the file system refuses one.
    pub fn add_names(&mut self, names: &[SecondName]) -> Result<()> {
        let mut put: Vec<Replaced> = Vec::new();
        self.begin()?;
        for (path, second) in names {
            match self.add_name(path, second) {
                Ok(entry) => put.push((entry, None)),
                Err(fault) => {
                    self.log.undo(&put);
                    return Err(fault);
                }
            }
        }
        self.log.commit(&put)
    }

    fn add_name(&mut self, path: &[u8], second: &[u8]) -> Result<IndexEntry> {
        check_path(second)?;
        if let Some(number) = self.files.number_at(path) {
            self.publish(number)?;
        }
        let before = self.log.entry(path)?;
        let node = self.log.node_of(&before)?;
        self.log.reserve()?;
        self.log.put(second, Some(node))
    }

    /// Removes the first names of files that have second ones.
    pub fn drop_first_names(&mut self, names: &[SecondName]) -> Result<()> {
        let mut dropped = self.begin();
        for (path, second) in names {
            self.move_name(path, second);
            dropped =
                dropped.and_then(|()| self.log.reserve()).and_then(|()| self.log.put(path, None).map(drop));
        }
        dropped.and_then(|()| self.log.write_pending())
    }

    /// Puts a note at a path that no file has, or removes it.
    pub fn put_note(&mut self, path: &[u8], note: Option<&[u8]>) -> Result<()> {
        self.begin()?;
        let before = self.log.container().find(path)?;
        let node = Node::new(FileKind::Symlink, 0o777, (0, 0), wall());
        let node = note.map(|note| Node { target: note.to_vec(), ..node });
        let entry = self.log.put(path, node)?;
        self.log.commit(&[(entry, before)])
    }

    /// The note at a path.
    pub fn note(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let container = self.log.container();
        let entry = container.find(path)?;
        entry.map(|entry| Ok(container.node(&entry)?.target)).transpose()
    }
}
