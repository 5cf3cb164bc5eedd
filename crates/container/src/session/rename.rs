//! Renames in a session.

use super::Session;
use super::state::{Existing, State};
use crate::{IndexEntry, check_path};
use tameike_core::{Errno, FileKind, Result};

impl Session {
    /// Renames a file or a directory, and replaces an existing target. A directory takes along everything below it that this process knows.
    /// Missing parents of the target are created. New paths are put before old ones are removed: after a crash, some files have both paths,
    /// and each has at least one.
    ///
    /// # Errors
    /// `ENOENT`; `EISDIR` or `ENOTDIR` if only one of both is a directory; `ENOTEMPTY` if the target is a non-empty directory; `EINVAL` if
    /// the target lies below the source; errors of the file system.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(from)?;
        check_path(to)?;
        let mut state = self.state.lock();
        let Existing { entry, node } = state.find_published(from)?;
        if from == to {
            return Ok(());
        }
        let is_dir = node.kind == FileKind::Directory;
        if is_dir {
            if is_below(from, to) {
                return Err(Errno::EINVAL.into());
            }
            state.refresh_if_automatic()?;
        }
        state.check_replaceable(to, is_dir)?;
        self.begin(&mut state)?;
        let mut moved = vec![entry];
        let drafts = if is_dir { state.publish_below(from)? } else { Vec::new() };
        if is_dir {
            let below: Result<Vec<_>> = state.container.below(from)?.collect();
            moved.extend(below?);
        }
        self.make_parents(&mut state, to)?;
        state.put_moved(&moved, from, to)?;
        state.forget(to);
        for path in drafts.iter().map(Vec::as_slice).chain([from]) {
            state.move_draft(path, renamed(path, from, to));
        }
        Ok(())
    }
}

impl State {
    /// Checks that a path may be replaced by a directory (`by_dir`) or another file.
    fn check_replaceable(&mut self, path: &[u8], by_dir: bool) -> Result<()> {
        let kind = match self.drafts.contains_key(path) {
            true => FileKind::File,
            false => match self.find(path) {
                Ok(Existing { node, .. }) => node.kind,
                Err(fault) if fault.errno == Errno::ENOENT => return Ok(()),
                Err(fault) => return Err(fault),
            },
        };
        match (kind, by_dir) {
            (FileKind::Directory, false) => Err(Errno::EISDIR.into()),
            (FileKind::Directory, true) if !self.is_empty(path)? => Err(Errno::ENOTEMPTY.into()),
            (FileKind::Directory, true) => Ok(()),
            (_, true) => Err(Errno::ENOTDIR.into()),
            (_, false) => Ok(()),
        }
    }

    fn is_empty(&self, dir: &[u8]) -> Result<bool> {
        let has_open = self.drafts.keys().any(|path| is_below(dir, path));
        Ok(!has_open && self.container.below(dir)?.next().transpose()?.is_none())
    }

    /// Puts entries of all files below a directory that are open for writing. Returns their paths.
    fn publish_below(&mut self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let is_below = |(path, _): &(&Vec<u8>, _)| is_below(dir, path);
        let drafts: Vec<_> =
            self.drafts.iter().filter(is_below).map(|(path, draft)| (path.clone(), draft.clone())).collect();
        drafts.iter().try_for_each(|(_, draft)| self.publish(&mut draft.lock()))?;
        Ok(drafts.into_iter().map(|(path, _)| path).collect())
    }

    /// Puts entries (directories before their contents) at their new paths, all of them before the first old path is removed.
    fn put_moved(&mut self, moved: &[IndexEntry], from: &[u8], to: &[u8]) -> Result<()> {
        let mut nodes = Vec::with_capacity(moved.len());
        for entry in moved {
            let path = renamed(&entry.path, from, to);
            check_path(&path)?;
            nodes.push((path, self.node_of(entry)?.0));
        }
        nodes.into_iter().try_for_each(|(path, node)| self.put(&path, Some(node), &[]).map(drop))?;
        // Contents of a directory before the directory.
        for entry in moved.iter().rev() {
            self.put(&entry.path, None, &[])?;
            self.dirs.remove(&entry.path);
        }
        Ok(())
    }

    /// Detaches a replaced file from its path; it stays open.
    fn forget(&mut self, path: &[u8]) {
        if let Some(replaced) = self.drafts.remove(path) {
            replaced.lock().path = None;
        }
    }

    fn move_draft(&mut self, from: &[u8], to: Vec<u8>) {
        if let Some(draft) = self.drafts.remove(from) {
            draft.lock().path = Some(to.clone());
            self.drafts.insert(to, draft);
        }
    }
}

fn is_below(dir: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
}

/// The path of `path`, at or below `from`, after the rename of `from` to `to`.
fn renamed(path: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    [to, &path[from.len()..]].concat()
}
