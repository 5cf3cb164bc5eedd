//! Creates files in a tree that merges the shared directory with packed files.

use super::PackedTree;
use super::lookup::Unlisted;
use super::packer_client::{PackerClient, unexpected_reply};
use crate::{owner_of_new, unless_missing};
use std::sync::Arc;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::{Access, SharedFile, split};

impl PackedTree {
    /// Removes a file that was just created if another agent has packed one at the same path.
    pub(crate) fn unless_packed<T>(&self, path: &[u8], made: T) -> Result<T> {
        if self.is_packed_as_well(path)? {
            self.plain.unlink(path)?;
            return Err(Errno::EEXIST.into());
        }
        Ok(made)
    }

    /// Whether a packed file is at a path at which something was created in the shared directory. The packer creates none there from now on
    /// for clients that have not seen that.
    pub(crate) fn is_packed_as_well(&self, path: &[u8]) -> Result<bool> {
        let Some(packer) = &self.packer else { return Ok(false) };
        Ok(unless_missing(packer.stat(PackRequest::Named { path: path.to_vec() }))?.is_some())
    }

    fn check_missing(&self, path: &[u8]) -> Result<()> {
        match unless_missing(self.plain.stat(path))? {
            Some(_) => Err(Errno::EEXIST.into()),
            None => Ok(()),
        }
    }

    /// Creates a packed file; returns nothing where the directory does not pack.
    pub(crate) fn create_packed(
        &self,
        packer: &PackerClient,
        path: &[u8],
        mode: u16,
    ) -> Result<Option<Arc<dyn SharedFile>>> {
        self.check_names_beside(path)?;
        let now = self.runtime.clock.monotonic();
        if self.missing.seen(path, now).is_none() && self.find_unlisted(path, now) == Some(Unlisted::Packed) {
            return Err(Errno::EEXIST.into());
        }
        let seen = self.missing.seen(path, now);
        if seen.is_none() {
            self.check_missing(path)?;
        }
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        let parent = self.plain.stat(dir)?;
        if parent.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let (uid, gid) = owner_of_new(&parent, self.owner);
        let (number, mut looked) = (self.runtime.random_u64(), None);
        loop {
            let create = PackRequest::Create { path: path.to_vec(), number, mode, uid, gid, looked };
            match packer.call(create)? {
                PackReply::Opened { stat, packer: by } => {
                    self.absent.note(path, seen.unwrap_or(now));
                    return self.opened(packer, path, (&stat, by), Access::Write).map(Some);
                }
                PackReply::Declined => return Ok(None),
                PackReply::LookupFirst(since) => {
                    self.plain.revalidate(path);
                    self.check_missing(path)?;
                    looked = Some(since);
                }
                other => return Err(unexpected_reply(&other)),
            }
        }
    }

    /// Drops the cached lookups of a path at which the shared directory gets a file.
    pub(crate) fn forget(&self, path: &[u8]) {
        self.absent.forget(path);
        self.missing.forget(path);
    }
}
