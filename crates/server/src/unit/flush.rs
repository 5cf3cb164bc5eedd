//! Dirty bytes go to the shared file: exactly those, ascending, and clean only after fsync.

use super::fetch::read_gap;
use super::{UnitService, check_index, digest};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, UnitDigest, UnitReply};
use tameike_core::{Errno, Fault, Generation, InodeId, Result, UnitId};
use tameike_io::shared::{Access, SharedFile, open_same};
use tameike_store::extent::DirtyUnit;

/// What a flush is asked for.
pub(super) struct Order {
    pub(super) inode: InodeId,
    pub(super) path: Vec<u8>,
    pub(super) size: u64,
    pub(super) generation: Generation,
    pub(super) patient: bool,
}

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;

impl UnitService {
    pub(super) async fn flush(&self, order: Order) -> Result<UnitReply> {
        let extents = &self.parts.extents;
        let _only = self.flush_locks.hold(order.inode).await;
        // One more than are flushed, to know whether any are left.
        let dirty = extents.dirty_units(order.inode, FLUSH_UNITS_MAX + 1)?;
        let mut done = Vec::new();
        let (mut written, mut end, mut digests) = (0, 0, Vec::new());
        let busy = |done: &[_]| order.patient && !done.is_empty() && !self.parts.activity.is_quiet();
        if dirty.is_empty() || (order.patient && !self.parts.activity.is_quiet()) {
            return Ok(UnitReply::Flushed { written, end, digests, rest: !dirty.is_empty() });
        }
        let file = self.open(&order, Access::Write).await?;
        for unit in dirty.iter().take(FLUSH_UNITS_MAX) {
            if busy(&done) {
                break;
            }
            let (count, digest) = self.flush_unit(&file, unit, &order).await?;
            written += count;
            end = end.max(unit.unit.start() + u64::from(unit.ranges.end()));
            digests.push(digest);
            done.push(unit);
        }
        self.parts.runtime.block(move || file.sync()).await?;
        let _alone = self.file_locks.hold(order.inode).await;
        for unit in &done {
            extents.mark_clean(unit, order.generation).await?;
        }
        // What is clean must not turn dirty again when the agent dies: others may change the file from now on.
        extents.sync(false).await?;
        self.parts.activity.add_flushed(written);
        Ok(UnitReply::Flushed { written, end, digests, rest: done.len() < dirty.len() })
    }

    async fn open(&self, order: &Order, access: Access) -> Result<Arc<dyn SharedFile>> {
        let (shared, path, inode) = (self.parts.shared.clone(), order.path.clone(), order.inode);
        let open = move || open_same(&*shared, &path, inode, access).map(|(file, _)| file);
        self.parts.runtime.block(open).await
    }

    /// Writes the dirty bytes of one unit, and digests what the shared file then holds there.
    async fn flush_unit(
        &self,
        file: &Arc<dyn SharedFile>,
        dirty: &DirtyUnit,
        order: &Order,
    ) -> Result<(u64, UnitDigest)> {
        let UnitId { index, .. } = dirty.unit;
        let start = dirty.unit.start();
        let size = order.size.max(start + u64::from(dirty.ranges.end()));
        let frame = self.parts.flush_pool.take().await;
        let (mut frame, held) = self.parts.extents.read(dirty.unit, WHOLE, frame, order.generation).await;
        let held = held?;
        if let Some(lost) = dirty.ranges.iter().find(|range| !held.contains(range)) {
            let message = format!("dirty bytes {lost:?} of unit {index} of {} are gone", order.inode);
            return Err(Fault::new(Errno::EIO, message));
        }
        let (file, ranges) = (file.clone(), dirty.ranges.clone());
        let write = move || {
            for range in ranges.iter() {
                let bytes = &frame[range.start as usize..range.end as usize];
                file.write_at(bytes, start + u64::from(range.start))?;
            }
            let length = digest::unit_length(size, index);
            for gap in held.gaps(0..length) {
                read_gap(&*file, start, &gap, &mut frame)?;
            }
            let digest = digest::of_unit(index, &frame[..length as usize], size);
            Ok((u64::from(ranges.len()), digest))
        };
        self.parts.runtime.block(write).await
    }

    /// Digests of units as the shared file system has them, not as this machine's memory does.
    pub(super) async fn digests(
        &self,
        inode: InodeId,
        path: Vec<u8>,
        size: u64,
        units: Vec<u64>,
    ) -> Result<Vec<UnitDigest>> {
        if units.len() > FLUSH_UNITS_MAX {
            return Err(Fault::new(Errno::EINVAL, format!("{} units are too many to digest", units.len())));
        }
        units.iter().try_for_each(|&index| check_index(index))?;
        let order = Order { inode, path, size, generation: Generation(0), patient: false };
        let file = self.open(&order, Access::Read).await?;
        let forget = file.clone();
        self.parts.runtime.block(move || forget.forget_pages()).await?;
        let mut digests = Vec::with_capacity(units.len());
        for index in units {
            let mut frame = self.parts.flush_pool.take().await;
            let file = file.clone();
            let digest = move || {
                let length = digest::unit_length(size, index);
                read_gap(&*file, UnitId { inode, index }.start(), &(0..length), &mut frame)?;
                Ok::<_, Fault>(digest::of_unit(index, &frame[..length as usize], size))
            };
            digests.push(self.parts.runtime.block(digest).await?);
        }
        Ok(digests)
    }
}
