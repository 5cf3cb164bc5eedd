//! Changes the names of packed files.

use super::Store;
use crate::server::entry_log::Replaced;
use crate::server::succession::{CALLS, LEFT, MARKS, Succession, removed_path};
use tameike_container::{IndexEntry, Node, check_path};
use tameike_core::{FileKind, Result};
use tameike_io::os::process::wall;

/// The path of a file, and the second name that it gets.
pub type SecondName = (Vec<u8>, Vec<u8>);

impl Store {
    /// Removes a file. Its open files stay open until they are closed.
    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let removed = self.stat(path)?;
        if self.keeps(removed.number) {
            return self.rename(path, &removed_path(removed.number));
        }
        self.remove_name(path)?;
        self.drop_external(&removed);
        Ok(())
    }

    /// Whether a later packer of the job may need a file that is removed.
    fn keeps(&self, number: u64) -> bool {
        match self.succession {
            Succession::Only => false,
            Succession::First => self.files.is_open(number),
            // It may have been open at an earlier packer.
            Succession::Later => true,
        }
    }

    /// Removes what packers of the job have left to later ones.
    pub fn remove_left(&mut self) -> Result<()> {
        for path in self.below(LEFT)? {
            let removed = self.stat(&path)?;
            self.remove_name(&path)?;
            self.drop_external(&removed);
        }
        [MARKS, CALLS].iter().try_for_each(|note| match self.note(note)? {
            Some(_) => self.put_note(note, None),
            None => Ok(()),
        })
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
        for path in [from, to] {
            if let Some(number) = self.files.number_at(path) {
                self.publish(number)?;
            }
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
        // While a directory is renamed, both may be names of one file.
        let gone = gone.filter(|gone| gone.number != renamed.number);
        let kept = gone.as_ref().filter(|gone| self.keeps(gone.number)).map(|gone| removed_path(gone.number));
        self.put_renamed((from, before), (to, replaced), kept.as_deref())?;
        match &kept {
            Some(kept) => self.move_name(to, kept),
            None => self.forget_name(to),
        }
        self.move_name(from, to);
        gone.filter(|_| kept.is_none()).iter().for_each(|gone| self.drop_external(gone));
        Ok(())
    }

    /// Puts the entries of a rename. A replaced file that is `kept` gets that path. Where the file system refuses one, none counts.
    fn put_renamed(
        &mut self,
        (from, before): (&[u8], IndexEntry),
        (to, replaced): (&[u8], Option<IndexEntry>),
        kept: Option<&[u8]>,
    ) -> Result<()> {
        let mut put: Vec<Replaced> = Vec::new();
        let renamed = self.log.node_of(&before)?;
        let second = match (kept, &replaced) {
            (Some(path), Some(replaced)) => Some((path, self.log.node_of(replaced)?)),
            _ => None,
        };
        let entries = second.map(|(path, node)| (path, Some(node), None)).into_iter();
        let entries = entries.chain([(to, Some(renamed), replaced), (from, None, Some(before))]);
        for (path, node, was) in entries {
            match self.log.put(path, node) {
                Ok(entry) => put.push((entry, was)),
                Err(fault) => {
                    self.log.undo(&put);
                    return Err(fault);
                }
            }
        }
        put.reverse();
        self.log.commit(&put)
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
