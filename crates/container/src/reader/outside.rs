//! Files whose content is outside of the container.

use super::super::index::{Brief, IndexEntry};
use super::Container;
use crate::format::external::{Identity, name};
use tameike_core::{FileKind, Result};
use tameike_io::shared::FileStat;

impl Container {
    /// How many files of its directory have content of others, or once had.
    pub fn count_outside(&self) -> usize {
        self.outside
    }

    /// Of a file whose content is outside, what its entry tells of that.
    ///
    /// # Errors
    /// `EIO` when its record is damaged.
    pub fn outside_of(&self, entry: &IndexEntry) -> Result<Option<Identity>> {
        match entry.node {
            Some(Brief { kind: FileKind::File, size: 0, .. }) => {
                Ok(Identity::told_outside(&self.node(entry)?))
            }
            _ => Ok(None),
        }
    }

    /// What is told of an entry in short: with size and time of content that is outside, if that can be found.
    ///
    /// # Errors
    /// `EIO` when its record is damaged.
    pub fn brief(&self, entry: &IndexEntry) -> Result<Option<Brief>> {
        if self.outside > 0
            && let Some(identity) = self.outside_of(entry)?
        {
            let found = self.records.fs().stat(&name(identity.number));
            if let (Ok(FileStat { kind: FileKind::File, size, mtime, .. }), Some(told)) = (found, entry.node)
            {
                return Ok(Some(Brief { size, mtime, ..told }));
            }
        }
        Ok(entry.node)
    }
}
