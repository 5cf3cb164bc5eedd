//! Walks a path to the directory of its last name.
//!
//! Like the kernel, it caches each directory for [`DIRECTORY_LIFETIME`] by parent and name. A rename, removal or permission change of
//! a directory on this node empties the cache. If the owner's bits do not permit a search, or a component is no directory, it declines.

use super::convert::{Refusal, Served};
use super::directory_cache::{Directory, Key, Lookup};
use super::session::Session;
use super::view::RingView;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::limits::{DIRECTORY_LIFETIME, NAME_SIZE_MAX};
use tameike_core::{Attr, FileKind};
use tameike_ring::message::Start;

// Mode bits of the owner.
pub(super) const READ: u16 = 0o400;
pub(super) const WRITE: u16 = 0o200;
pub(super) const SEARCH: u16 = 0o100;

/// Returns whether the owner's bits permit an access, or the program runs as user 0 (the ring does not serve user 0 without
/// capabilities over files). If not, a group or an access control list may still permit it: the kernel decides.
pub(super) fn may(session: &Session, attr: &Attr, bits: u16) -> bool {
    session.user == 0 || (attr.uid == session.user && attr.mode & bits == bits)
}

/// Target of a path: a directory and a name in it, or `None` for the directory itself.
pub(super) struct PathTarget<'a, V: Vfs> {
    pub dir: Arc<Directory<V>>,
    pub name: Option<&'a [u8]>,
}

impl<V: Vfs> RingView<V> {
    pub(super) async fn walk<'a>(
        &self,
        session: &Session,
        at: Start,
        path: &'a [u8],
    ) -> Served<PathTarget<'a, V>> {
        // An absolute path has no start directory in the view; a trailing slash requires a directory.
        if path.starts_with(b"/") || path.ends_with(b"/") {
            return Err(Refusal::Declined);
        }
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let mut dir = self.start(session, FileNumber(at.dir)).await?;
        let mut name = names.next();
        while let Some(this) = name {
            if this == b".." || this.len() > NAME_SIZE_MAX || this.contains(&0) {
                return Err(Refusal::Declined);
            }
            if !may(session, &dir.attr, SEARCH) {
                return Err(Refusal::Declined);
            }
            let next = names.next();
            if next.is_none() {
                // `name/.` also requires a directory.
                let is_plain = path.ends_with(this);
                return if is_plain { Ok(PathTarget { dir, name }) } else { Err(Refusal::Declined) };
            }
            dir = self.step(session, &dir, this).await?;
            name = next;
        }
        Ok(PathTarget { dir, name: None })
    }

    async fn start(&self, session: &Session, file: FileNumber) -> Served<Arc<Directory<V>>> {
        let (changes, now) = (self.arbiter.directories(), self.now());
        let key = (file, Vec::new());
        if let Some(found) = self.directory_cache.find(&key, changes, now) {
            return Ok(found);
        }
        let attr = self.vfs.getattr(file).await.map_err(|_| Refusal::Declined)?;
        if attr.kind != FileKind::Directory {
            return Err(Refusal::Declined);
        }
        let directory = Arc::new(Directory::new(file, attr, None));
        Ok(self.keep(session, key, directory, (changes, now)))
    }

    async fn step(&self, session: &Session, dir: &Directory<V>, name: &[u8]) -> Served<Arc<Directory<V>>> {
        let (changes, now) = (self.arbiter.directories(), self.now());
        let key = (dir.file, name.to_vec());
        if let Some(found) = self.directory_cache.find(&key, changes, now) {
            return Ok(found);
        }
        let found = self.vfs.lookup(dir.file, name).await?;
        let held = Lookup::new(&self.vfs, found.file);
        if found.attr.kind != FileKind::Directory {
            return Err(Refusal::Declined);
        }
        let directory = Arc::new(Directory::new(found.file, found.attr, Some(held)));
        Ok(self.keep(session, key, directory, (changes, now)))
    }

    /// Caches a directory that was found when the count of changes was `changes`, and shares it with programs, which all belong to
    /// one user.
    fn keep(
        &self,
        session: &Session,
        key: Key,
        directory: Arc<Directory<V>>,
        (changes, now): (u64, Duration),
    ) -> Arc<Directory<V>> {
        let until = now + DIRECTORY_LIFETIME;
        if let Some(shown) = self.shown.as_ref().filter(|_| may(session, &directory.attr, SEARCH)) {
            shown.show_directory(&key, directory.file, changes, until);
        }
        self.directory_cache.keep(key, directory.clone(), changes, until);
        directory
    }
}
