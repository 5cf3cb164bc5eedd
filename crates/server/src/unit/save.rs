//! Saves the units of a file that is gone from the shared directory to another directory.

use super::UnitService;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{Access, PosixTree, SharedFs};

impl UnitService {
    /// Writes the units of the file that have dirty bytes, with all that is held of them, to the file at `path` below `dir`.
    pub(super) async fn save(&self, request: UnitRequest) -> Result<UnitReply> {
        let UnitRequest::Save { inode, dir, path, generation } = request else {
            return Err(Errno::EINVAL.into());
        };
        let _only = self.flush_locks.hold(inode).await;
        let dirty = self.parts.extents.dirty_units(inode, usize::MAX)?;
        let (mut written, mut end) = (0, 0);
        if dirty.is_empty() {
            return Ok(UnitReply::Flushed { written, end, digests: Vec::new(), rest: false, left: None });
        }
        let open = move || PosixTree::open(Path::new(OsStr::from_bytes(&dir)))?.open(&path, Access::Write);
        let file = self.parts.runtime.block(open).await?;
        for unit in dirty {
            let start = unit.unit.start();
            let frame = self.parts.flush_pool.take().await;
            let (frame, held) = self.read_held(unit.unit, 0..UNIT_SIZE as u32, frame, generation, None).await;
            let held = held?.ranges;
            if let Some(lost) = unit.ranges.iter().find(|range| !held.contains(range)) {
                let message = format!(
                    "dirty bytes {lost:?} of unit {} of {inode} are missing in the store",
                    unit.unit.index
                );
                return Err(Fault::new(Errno::EIO, message));
            }
            written += u64::from(held.len());
            end = end.max(start + u64::from(held.end()));
            let own_file = file.clone();
            let write = move || {
                held.iter().try_for_each(|range| {
                    let bytes = &frame[range.start as usize..range.end as usize];
                    own_file.write_at(bytes, start + u64::from(range.start))
                })
            };
            self.parts.runtime.block(write).await?;
        }
        self.parts.runtime.block(move || file.sync()).await?;
        Ok(UnitReply::Flushed { written, end, digests: Vec::new(), rest: false, left: None })
    }
}
