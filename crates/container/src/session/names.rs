//! Directory entries in a session: lookup, creation, removal.

use super::Session;
use super::state::{Existing, State, brief};
use crate::{Brief, Node, check_path, split_path};
use std::collections::BTreeMap;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::join;

impl Session {
    /// Attributes of a path, without following a link. The size of a symbolic link is that of its target. Fails with `ENOENT` if the path
    /// does not exist.
    pub fn stat(&self, path: &[u8]) -> Result<Brief> {
        if path.is_empty() {
            return Ok(self.root());
        }
        let mut state = self.state.lock();
        if let Some(draft) = state.drafts.get(path) {
            return Ok(brief(&draft.lock()));
        }
        let Existing { entry, node } = state.find(path)?;
        match node.kind {
            FileKind::Symlink => Ok(Brief { size: state.node(&entry)?.target.len() as u64, ..node }),
            _ => Ok(state.brief(&entry)?.unwrap_or(node)),
        }
    }

    /// The root; it has no entry.
    pub(super) fn root(&self) -> Brief {
        Brief::of(&self.new_node(FileKind::Directory, 0o755))
    }

    /// Names in a directory, sorted, each with its kind.
    ///
    /// # Errors
    /// `ENOENT` if the path does not exist, `ENOTDIR` if it is no directory.
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, FileKind)>> {
        let mut state = self.state.lock();
        state.refresh_if_automatic()?;
        if !path.is_empty() && state.find(path)?.node.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let mut names = BTreeMap::new();
        for entry in state.container.children(path)? {
            let entry = entry?;
            let kind = entry.node.map_or(FileKind::File, |node| node.kind);
            names.insert(split_path(&entry.path).1.to_vec(), kind);
        }
        let open = state.drafts.keys().map(|open| split_path(open)).filter(|(dir, _)| *dir == path);
        names.extend(open.map(|(_, name)| (name.to_vec(), FileKind::File)));
        Ok(names.into_iter().collect())
    }

    /// Creates a directory, and missing parents. Fails with `EEXIST` if the path exists.
    pub fn make_dir(&self, path: &[u8], mode: u16) -> Result<()> {
        if path.is_empty() {
            return Err(Errno::EEXIST.into());
        }
        self.make(path, self.new_node(FileKind::Directory, mode))
    }

    /// Creates a file without content with all its attributes (a link, a FIFO, a device, a directory), and missing parent directories.
    ///
    /// # Errors
    /// `EINVAL` for a regular file, `EEXIST` if the path exists.
    pub fn make(&self, path: &[u8], node: Node) -> Result<()> {
        check_path(path)?;
        if node.kind == FileKind::File {
            return Err(Errno::EINVAL.into());
        }
        let mut state = self.state.lock();
        state.check_missing(path)?;
        self.begin(&mut state)?;
        self.make_parents(&mut state, path)?;
        state.put(path, Some(node), &[]).map(drop)
    }

    /// Removes a file of any kind but a directory. Open files stay readable until they are closed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, and errors of the file system.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        if !state.drafts.contains_key(path) && state.find(path)?.node.kind == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        self.begin(&mut state)?;
        state.put(path, None, &[])?;
        if let Some(draft) = state.drafts.remove(path) {
            draft.lock().path = None;
        }
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, and errors of the file system.
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        if !self.read_dir(path)?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let mut state = self.state.lock();
        self.begin(&mut state)?;
        state.dirs.remove(path);
        state.put(path, None, &[]).map(drop)
    }

    /// Creates the parent directories that this process does not know.
    pub(super) fn make_parents(&self, state: &mut State, path: &[u8]) -> Result<()> {
        let mut dir = Vec::new();
        let (parent, _) = split_path(path);
        for name in parent.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            dir = join(&dir, name);
            if state.dirs.contains(&dir) {
                continue;
            }
            if state.drafts.contains_key(&dir) {
                return Err(Errno::ENOTDIR.into());
            }
            match state.container.find(&dir)?.and_then(|entry| entry.node) {
                Some(node) if node.kind != FileKind::Directory => return Err(Errno::ENOTDIR.into()),
                Some(_) => {}
                None => {
                    state.put(&dir, Some(self.new_node(FileKind::Directory, 0o755)), &[])?;
                }
            }
            state.dirs.insert(dir.clone());
        }
        Ok(())
    }
}
