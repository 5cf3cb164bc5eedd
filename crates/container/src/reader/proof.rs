//! Integrity checks of entries and contents.

use super::Container;
use crate::format::entry::{Entry, Extent, Node};
use crate::format::external::ExternalContent;
use crate::format::geometry::LaneId;
use crate::format::record::Head;
use crate::index::IndexEntry;
use tameike_core::{Errno, Fault, Result};

impl Container {
    /// Returns true if an entry is at its address and valid, whatever has happened to its path since.
    pub fn has_put(&self, entry: &Entry, lane: LaneId, address: u64) -> Result<bool> {
        if self.refused.iter().any(|refused| (refused.lane, refused.address) == (lane, address)) {
            return Ok(false);
        }
        match self.records.read(lane, address, 0) {
            Ok((Head { entry: Some(found), .. }, _)) => {
                Ok(found.path == entry.path && found.version == entry.version)
            }
            Ok(_) => Ok(false),
            Err(fault) if fault.errno == Errno::EIO => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Returns true if an extent of a file can be read.
    pub fn is_whole(&self, node: &Node, piece: &Extent) -> Result<bool> {
        Ok(self.open_extents(node.clone(), vec![*piece]).damage()?.is_empty())
    }

    /// The damage of a file; empty if all of it can be read. External content is only checked for existence.
    pub fn check(&self, entry: &IndexEntry) -> Result<Vec<Fault>> {
        let mut damage = self.check_records(entry)?;
        if damage.is_empty()
            && let Some(identity) = self.external_identity(entry)?
        {
            match ExternalContent::open(&**self.records.fs(), &identity, &mut self.node(entry)?) {
                // The content was promoted.
                Err(fault) if fault.errno == Errno::ENOENT => {}
                Err(fault) => damage.push(fault),
                Ok(_) => {}
            }
        }
        Ok(damage)
    }

    pub(super) fn check_records(&self, entry: &IndexEntry) -> Result<Vec<Fault>> {
        if entry.node.is_none() {
            return Ok(Vec::new());
        }
        match self.opener().open_record(entry) {
            Ok(mut file) => file.damage(),
            Err(fault) if fault.errno == Errno::EIO => Ok(vec![fault]),
            Err(fault) => Err(fault),
        }
    }
}
