//! Saves the units of a file that is missing in the shared directory to another directory.

use super::UnitService;
use super::flush::write_ranges;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Result};
use tameike_io::shared::{Access, PosixTree, SharedFs};

impl UnitService {
    /// Writes the units with dirty bytes, with all bytes of them that the node stores, to the file at `path` below `dir`.
    pub(super) async fn save(&self, request: UnitRequest) -> Result<UnitReply> {
        let UnitRequest::Save { inode, dir, path, generation } = request else {
            return Err(Errno::EINVAL.into());
        };
        let _only = self.flush_locks.hold(inode).await;
        let dirty = self.parts.extents.dirty_units(&self.parts.copies.served(), inode, usize::MAX)?;
        let (mut written, mut end) = (0, 0);
        if dirty.is_empty() {
            return Ok(UnitReply::Flushed { written, end, digests: Vec::new(), rest: false, left: None });
        }
        let open = move || PosixTree::open(Path::new(OsStr::from_bytes(&dir)))?.open(&path, Access::Write);
        let file = self.parts.runtime.block(open).await?;
        for unit in dirty {
            let start = unit.unit.start();
            let (frame, held) = self.read_dirty(&unit, generation, None).await?;
            written += u64::from(held.len());
            end = end.max(start + u64::from(held.end()));
            let own_file = file.clone();
            self.parts.runtime.block(move || write_ranges(&*own_file, start, &held, &frame)).await?;
        }
        self.parts.runtime.block(move || file.sync()).await?;
        Ok(UnitReply::Flushed { written, end, digests: Vec::new(), rest: false, left: None })
    }
}
