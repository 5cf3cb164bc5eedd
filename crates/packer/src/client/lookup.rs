//! What is at a path, where two places have names: the shared directory and its container.

use super::PackedTree;
use crate::{SNAPSHOT_LIFETIME, unless_missing};
use std::time::Duration;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Result};
use tameike_io::shared::{SharedFs, split};

/// What is known of a path without a look at the shared directory, which has nothing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    /// A packed file.
    Packed,
    /// Nothing.
    Missing,
}

impl PackedTree {
    /// What is at a path of the shared directory; what is packed there where that has nothing.
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

    /// What the packer knows of a path in a directory many of whose names were missing of late. So it is in storms of files that are made, each
    /// of which is looked for first; some file systems ask all their servers for a name that is not there.
    pub(crate) fn find_unlisted(&self, path: &[u8], now: Duration) -> Option<Unlisted> {
        let (packer, (dir, _)) = (self.packer.as_ref()?, split(path)?);
        if !self.misses.are_many(dir, now) {
            return None;
        }
        match packer.ask(PackRequest::Find { path: path.to_vec() }) {
            Ok(PackReply::Stat(_)) => Some(Unlisted::Packed),
            Ok(PackReply::Missing) => {
                self.note_missing(path, now.saturating_sub(SNAPSHOT_LIFETIME));
                Some(Unlisted::Missing)
            }
            Ok(PackReply::Look(_)) => None,
            // It is looked for as ever, and so are the next.
            Ok(_) | Err(_) => {
                self.misses.forget(dir);
                None
            }
        }
    }

    /// Nothing was at a path at this moment.
    fn note_missing(&self, path: &[u8], then: Duration) {
        self.missing.note(path, then);
        if let Some((dir, _)) = split(path) {
            self.misses.count(dir, self.runtime.clock.monotonic());
        }
    }
}
