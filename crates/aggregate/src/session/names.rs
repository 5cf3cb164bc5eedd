//! Names of a container as programs see and change them.

use super::Session;
use super::state::{State, brief};
use std::collections::BTreeMap;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::join;
use tameike_store::container::{Brief, check_path, split_path};

impl Session {
    /// What is at a path; the root is a directory.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing.
    pub fn stat(&self, path: &[u8]) -> Result<Brief> {
        if path.is_empty() {
            return Ok(Brief::of(&self.new_node(FileKind::Directory, 0o755)));
        }
        let mut state = self.state.lock();
        if let Some(draft) = state.drafts.get(path) {
            return Ok(brief(&draft.lock()));
        }
        Ok(state.find(path)?.node)
    }

    /// Names in a directory, in their order, each with what it is.
    ///
    /// # Errors
    /// `ENOENT` when there is no such directory, `ENOTDIR` when it is something else.
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, FileKind)>> {
        let mut state = self.state.lock();
        state.container.refresh()?;
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

    /// Makes a directory, and those that it lies in.
    ///
    /// # Errors
    /// `EEXIST` when there is something.
    pub fn make_dir(&self, path: &[u8], mode: u16) -> Result<()> {
        if !path.is_empty() {
            check_path(path)?;
        }
        let mut state = self.state.lock();
        if path.is_empty() || state.drafts.contains_key(path) || state.find(path).is_ok() {
            return Err(Errno::EEXIST.into());
        }
        self.begin(&mut state)?;
        self.make_parents(&mut state, path)?;
        let node = self.new_node(FileKind::Directory, mode);
        state.put(path, Some(node), &[]).map(drop)
    }

    /// Removes anything but a directory. Who has it open keeps it until it is closed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, and what the file system says.
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

    /// Removes a directory in which nothing is.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, and what the file system says.
    pub fn remove_dir(&self, path: &[u8]) -> Result<()> {
        if !self.read_dir(path)?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let mut state = self.state.lock();
        self.begin(&mut state)?;
        state.dirs.remove(path);
        state.put(path, None, &[]).map(drop)
    }

    /// Gives a regular file or a link another name, in place of what has that name.
    ///
    /// # Errors
    /// `ENOENT`; `EXDEV` for a directory: programs move what is in it then; `EISDIR`; what the file system says.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(to)?;
        let mut state = self.state.lock();
        self.begin(&mut state)?;
        let draft = match state.drafts.get(from) {
            Some(draft) => {
                let draft = draft.clone();
                state.publish(&mut draft.lock())?;
                Some(draft)
            }
            None => None,
        };
        let entry = state.find(from)?.entry;
        let is_dir = |node: &Brief| node.kind == FileKind::Directory;
        if entry.node.as_ref().is_some_and(is_dir) {
            return Err(Errno::EXDEV.into());
        }
        if state.find(to).is_ok_and(|there| is_dir(&there.node)) {
            return Err(Errno::EISDIR.into());
        }
        if from == to {
            return Ok(());
        }
        self.make_parents(&mut state, to)?;
        let (node, _) = state.node_of(&entry)?;
        state.put(to, Some(node), &[])?;
        state.put(from, None, &[])?;
        if let Some(replaced) = state.drafts.remove(to) {
            replaced.lock().path = None;
        }
        if let Some(draft) = draft {
            draft.lock().path = Some(to.to_vec());
            state.drafts.remove(from);
            state.drafts.insert(to.to_vec(), draft);
        }
        Ok(())
    }

    /// Directories that a path lies in are made where this process knows of none.
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
