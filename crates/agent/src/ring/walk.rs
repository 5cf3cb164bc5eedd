//! From a path to the directory of its last name.
//!
//! As the kernel does, each directory is kept for [`DIRECTORY_LIFETIME`] under its name in the one above it, and all of them
//! are forgotten when on this node a directory is renamed or removed, or who may use it changes. Whoever may not search a
//! directory by the owner's bits, or meets something else than a directory, asks the kernel.

use super::convert::{Refusal, Served};
use super::session::Session;
use super::view::RingView;
use super::walked::{Directory, Key, Lookup};
use std::sync::Arc;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::limits::{DIRECTORY_LIFETIME, NAME_SIZE_MAX};
use tameike_core::{Attr, FileKind};
use tameike_ring::message::Start;

/// Bits of the owner.
pub(super) const READ: u16 = 0o400;
pub(super) const WRITE: u16 = 0o200;
pub(super) const SEARCH: u16 = 0o100;

/// Whether a program may do this with a file by its owner's bits, or as the superuser: user 0 without capabilities over files is
/// not served. A program that may not, still may by a group or a list: the kernel decides.
pub(super) fn may(session: &Session, attr: &Attr, bits: u16) -> bool {
    session.user == 0 || (attr.uid == session.user && attr.mode & bits == bits)
}

/// Where a path leads: a directory, and a name in it, or none for the directory itself.
pub(super) struct Place<'a, V: Vfs> {
    pub dir: Arc<Directory<V>>,
    pub name: Option<&'a [u8]>,
}

impl<V: Vfs> RingView<V> {
    /// Walks a path to its last name.
    pub(super) async fn walk<'a>(
        &self,
        session: &Session,
        at: Start,
        path: &'a [u8],
    ) -> Served<Place<'a, V>> {
        // An absolute path starts nowhere here; one that ends in a slash wants a directory.
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
                // `name/.` wants a directory, too.
                let is_plain = path.ends_with(this);
                return if is_plain { Ok(Place { dir, name }) } else { Err(Refusal::Declined) };
            }
            dir = self.step(session, &dir, this).await?;
            name = next;
        }
        Ok(Place { dir, name: None })
    }

    /// The directory where a path starts.
    async fn start(&self, session: &Session, file: FileNumber) -> Served<Arc<Directory<V>>> {
        let (changes, now) = (self.custody.directories(), self.now());
        let key = (file, Vec::new());
        if let Some(found) = self.walked.find(&key, changes, now) {
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
        let (changes, now) = (self.custody.directories(), self.now());
        let key = (dir.file, name.to_vec());
        if let Some(found) = self.walked.find(&key, changes, now) {
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

    /// Keeps a directory that was looked for after so many changes, and shows it to programs, which are all of one user.
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
        self.walked.keep(key, directory.clone(), changes, until);
        directory
    }
}
