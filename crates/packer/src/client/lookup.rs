//! Lookups in a tree that merges the shared directory with packed files.

use super::PackedTree;
use crate::{SNAPSHOT_LIFETIME, unless_missing};
use std::time::Duration;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Result};
use tameike_io::shared::{SharedFs, split};

/// The result of a lookup that needs no access to the shared directory, which has nothing at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    /// The path has a packed file.
    Packed,
    /// The path is free.
    Missing,
}

impl PackedTree {
    /// Looks up a path in the shared directory, and where that has nothing, among the packed files.
    pub(crate) fn either<T>(
        &self,
        path: &[u8],
        plain: impl FnOnce(&dyn SharedFs) -> Result<T>,
        packed: impl Fn() -> Result<T>,
    ) -> Result<T> {
        if self.packer.is_none() {
            return plain(&*self.plain);
        }
        let now = self.runtime.clock.monotonic();
        let is_absent = self.absent.seen(path, now).is_some();
        let unlisted = if is_absent { Some(Unlisted::Packed) } else { self.find_unlisted(path, now) };
        match unlisted {
            Some(Unlisted::Packed) => {
                if let Some(found) = unless_missing(packed())? {
                    return Ok(found);
                }
            }
            Some(Unlisted::Missing) => return Err(Errno::ENOENT.into()),
            None => {}
        }
        match plain(&*self.plain) {
            Err(fault) if fault.errno == Errno::ENOENT => {
                let found = packed();
                match &found {
                    Ok(_) => self.absent.note(path, now),
                    Err(fault) if fault.errno == Errno::ENOENT => self.note_missing(path, now),
                    Err(_) => {}
                }
                found
            }
            found => found,
        }
    }

    /// Sends a lookup to the packer, if many lookups in the directory have failed lately. In a storm of creations each name is looked up
    /// first, and some file systems query all their servers for a missing name.
    pub(crate) fn find_unlisted(&self, path: &[u8], now: Duration) -> Option<Unlisted> {
        let (packer, (dir, _)) = (self.packer.as_ref()?, split(path)?);
        if !self.negative_lookups.are_many(dir, now) {
            return None;
        }
        match packer.call(PackRequest::Find { path: path.to_vec() }) {
            Ok(PackReply::Stat(_)) => Some(Unlisted::Packed),
            Ok(PackReply::Missing) => {
                self.note_missing(path, now.saturating_sub(SNAPSHOT_LIFETIME));
                Some(Unlisted::Missing)
            }
            Ok(PackReply::LookupFirst(_)) => None,
            // This lookup and the next ones go to the shared directory.
            Ok(_) | Err(_) => {
                self.negative_lookups.forget(dir);
                None
            }
        }
    }

    /// Caches that a path was free at this time.
    fn note_missing(&self, path: &[u8], then: Duration) {
        self.missing.note(path, then);
        if let Some((dir, _)) = split(path) {
            self.negative_lookups.count(dir, self.runtime.clock.monotonic());
        }
    }
}
