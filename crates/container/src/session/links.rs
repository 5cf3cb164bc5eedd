//! Symbolic links and hard links in a session.

use super::draft::Draft;
use super::state::{Existing, State, brief};
use super::{Brief, Session};
use crate::{IndexEntry, Node, check_path, follow_links, split_path};
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::join;

/// Maximum size of a symbolic link's target, in bytes.
const TARGET_SIZE_MAX: usize = 4095;

/// Result of resolving a path.
pub struct Resolved {
    /// The path without symbolic links.
    pub path: Vec<u8>,
    /// The file, if it is open for writing.
    pub draft: Option<Arc<Mutex<Draft>>>,
    /// The entry in the container.
    pub entry: Option<IndexEntry>,
}

impl Session {
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` if this is not a symbolic link.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut state = self.state.lock();
        if path.is_empty() || state.drafts.contains_key(path) {
            return Err(Errno::EINVAL.into());
        }
        match state.find(path)? {
            Existing { entry, node: Brief { kind: FileKind::Symlink, .. } } => Ok(state.node(&entry)?.target),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Creates a symbolic link, and missing parent directories.
    ///
    /// # Errors
    /// `EEXIST` if the path exists, `ENOENT` and `ENAMETOOLONG` for an invalid target.
    pub fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        check_path(path)?;
        match target.len() {
            0 => return Err(Errno::ENOENT.into()),
            size if size > TARGET_SIZE_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ => {}
        }
        let node = self.new_node(FileKind::Symlink, 0);
        self.make(path, Node { mode: 0o777, target: target.to_vec(), ..node })
    }

    /// Creates a second path with the same content, as an independent file. No byte is copied.
    ///
    /// # Errors
    /// `ENOENT`; `EEXIST` if the target exists, `EPERM` for a directory.
    pub fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(to)?;
        if from.is_empty() {
            return Err(Errno::EPERM.into());
        }
        let mut state = self.state.lock();
        let Existing { entry, node } = state.find_published(from)?;
        if node.kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        state.check_missing(to)?;
        state.check_inside(&entry)?;
        self.begin(&mut state)?;
        self.make_parents(&mut state, to)?;
        let (node, _) = state.node_of(&entry)?;
        state.put(to, Some(node), &[]).map(drop)
    }

    /// The path after all symbolic links in it are followed, the last one, too. It need not exist.
    ///
    /// # Errors
    /// `ELOOP` after more than 40 links, `ENOENT` if a link leads out of the container.
    pub fn resolve(&self, path: &[u8]) -> Result<Vec<u8>> {
        if path.is_empty() {
            return Ok(Vec::new());
        }
        check_path(path)?;
        Ok(self.state.lock().resolve_or_refresh(path, true)?.path)
    }

    /// As [`Self::stat`], of the path that [`Self::resolve`] returns.
    ///
    /// # Errors
    /// `ENOENT` if the path does not exist, and as [`Self::resolve`].
    pub fn stat_followed(&self, path: &[u8]) -> Result<Brief> {
        if path.is_empty() {
            return Ok(self.root());
        }
        let mut state = self.state.lock();
        match state.resolve_or_refresh(path, true)? {
            Resolved { path, .. } if path.is_empty() => Ok(self.root()),
            Resolved { draft: Some(draft), .. } => Ok(brief(&draft.lock())),
            Resolved { entry: Some(entry), .. } => state.brief(&entry)?.ok_or_else(|| Errno::ENOENT.into()),
            Resolved { entry: None, .. } => Err(Errno::ENOENT.into()),
        }
    }
}

impl State {
    /// As [`Self::resolve_known`]; if the path is missing, refreshes the container and retries.
    pub fn resolve_or_refresh(&mut self, path: &[u8], follows_last: bool) -> Result<Resolved> {
        match self.resolve_known(path, follows_last)? {
            Resolved { draft: None, entry: None, .. } if self.refresh_if_automatic()? => {
                self.resolve_known(path, follows_last)
            }
            resolved => Ok(resolved),
        }
    }

    /// Resolves a path by what this process knows; `follows_last` follows a link at its end, too.
    pub fn resolve_known(&mut self, path: &[u8], follows_last: bool) -> Result<Resolved> {
        let here = self.at(path.to_vec())?;
        let is_end = |node: Brief| node.kind != FileKind::Symlink || !follows_last;
        let found = here.entry.as_ref().and_then(|entry| entry.node);
        if here.draft.is_some() || found.is_some_and(is_end) {
            return Ok(here);
        }
        let (dir, name) = split_path(path);
        if found.is_none() && (dir.is_empty() || self.dirs.contains(dir)) {
            // A known directory is no link, so the path has none and is missing.
            return Ok(here);
        }
        let to = match follows_last {
            true => self.follow(path)?,
            false => join(&self.follow(dir)?, name),
        };
        if to == path { Ok(here) } else { self.at(to) }
    }

    fn at(&self, path: Vec<u8>) -> Result<Resolved> {
        let draft = self.drafts.get(&path).cloned();
        let entry = self.container.find(&path)?;
        Ok(Resolved { path, draft, entry })
    }

    /// A path without symbolic links.
    fn follow(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        follow_links(path, |at| self.target(at))
    }

    /// Target of the symbolic link at a path; `None` if it is no link.
    fn target(&mut self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.dirs.contains(path) || self.drafts.contains_key(path) {
            return Ok(None);
        }
        match self.container.find(path)? {
            Some(entry) if entry.node.is_some_and(|node| node.kind == FileKind::Symlink) => {
                Ok(Some(self.node(&entry)?.target))
            }
            Some(entry) => {
                if entry.node.is_some_and(|node| node.kind == FileKind::Directory) {
                    self.dirs.insert(path.to_vec());
                }
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
