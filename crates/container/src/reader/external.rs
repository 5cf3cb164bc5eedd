//! Entries with external content.

use super::Container;
use crate::format::external::{Identity, name};
use crate::index::{Brief, IndexEntry};
use tameike_core::{FileKind, Result};
use tameike_io::shared::FileStat;

impl Container {
    /// Number of files with external content in the container's directory, also of files that have been removed.
    pub fn count_external(&self) -> usize {
        self.external
    }

    /// The identity of a file with external content.
    pub fn external_identity(&self, entry: &IndexEntry) -> Result<Option<Identity>> {
        match entry.node {
            Some(Brief { kind: FileKind::File, size: 0, .. }) => {
                Ok(Identity::decode_external(&self.node(entry)?))
            }
            _ => Ok(None),
        }
    }

    /// The summary of an entry; size and mtime are those of the external content, if there is any and it can be found.
    pub fn brief(&self, entry: &IndexEntry) -> Result<Option<Brief>> {
        if self.external > 0
            && let Some(identity) = self.external_identity(entry)?
        {
            let found = self.records.fs().stat(&name(identity.number));
            if let (Ok(FileStat { kind: FileKind::File, size, mtime, .. }), Some(brief)) = (found, entry.node)
            {
                return Ok(Some(Brief { size, mtime, ..brief }));
            }
        }
        Ok(entry.node)
    }
}
