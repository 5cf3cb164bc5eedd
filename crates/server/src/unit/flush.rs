//! Flushes dirty units to the shared file: exactly the dirty bytes, in ascending order. They become clean after an fsync.
//!
//! All homes of a file flush it in one round. Their units become clean only after two steps:
//!
//! - The coordinator has successful replies from all homes. A home that opens the file after another one's failed fsync gets no error.
//! - The digests of the written units are in the coordinator's journal. So a lost reply leaves no stale digest.
//!
//! The descriptor that writes also syncs: the kernel reports a write-back error once to each descriptor that was open before. After a
//! failed fsync the kernel counts the pages as written, and the file system may have lost their extents. ext4 then accepts the same bytes
//! again, leaves their extents unwritten or an indirect block unwritten, and the next fsync succeeds. So the next flush of such a file
//! distrusts the page cache: it drops the pages, frees the blocks that it writes, and reads the bytes back after the fsync.

use super::gaps::Gaps;
use super::{UnitService, check_index, digest};
use crate::flush_end;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, FlushEnd, UnitDigest, UnitReply};
use tameike_core::{Errno, Fault, Generation, InodeId, Layout, Result, UnitId};
use tameike_io::Frame;
use tameike_io::shared::{Access, Allocate, ContentChange, FileStat, SharedFile, open_same};
use tameike_store::extent::DirtyUnit;

/// The parameters of a flush.
pub(super) struct Order {
    pub(super) inode: InodeId,
    pub(super) path: Vec<u8>,
    pub(super) size: u64,
    pub(super) generation: Generation,
    pub(super) patient: bool,
    pub(super) distrust: bool,
    pub(super) round: u64,
    pub(super) ending: Option<FlushEnd>,
}

/// Units of a flush round, which are dirty until [`UnitService::mark_round_clean`].
pub(super) struct Flushed {
    round: u64,
    units: Vec<DirtyUnit>,
    generation: Generation,
}

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;

impl UnitService {
    pub(super) async fn flush(&self, order: Order) -> Result<UnitReply> {
        let extents = &self.parts.extents;
        let _only = self.flush_locks.hold(order.inode).await;
        self.flushed.lock().remove(&order.inode);
        // One unit above the limit shows if more are left.
        let dirty = extents.dirty_units(&self.parts.copies.served(), order.inode, FLUSH_UNITS_MAX + 1)?;
        let (dirty_count, mut done) = (dirty.len(), Vec::new());
        let (mut written, mut end, mut digests, left) = (0, 0, Vec::new(), None);
        let busy = |done: &[_]| order.patient && !done.is_empty() && !self.parts.activity.is_quiet();
        if dirty.is_empty() || (order.patient && !self.parts.activity.is_quiet()) {
            return Ok(UnitReply::Flushed { written, end, digests, rest: !dirty.is_empty(), left });
        }
        let _changing = ContentChange::begin(&self.parts.shared, order.inode);
        let (file, seen) = self.open(&order, Access::Write).await?;
        if order.distrust {
            let file = file.clone();
            self.parts.runtime.block(move || file.forget_pages()).await?;
        }
        for unit in dirty.into_iter().take(FLUSH_UNITS_MAX) {
            if busy(&done) {
                break;
            }
            let (count, digest) = self.flush_unit(&file, &unit, &order).await?;
            // Progress counts units, so that it advances within a large file.
            self.parts.activity.add_flushed(count);
            written += count;
            end = end.max(unit.unit.start() + u64::from(unit.ranges.end()));
            digests.push(digest);
            done.push(unit);
        }
        let rest = done.len() < dirty_count;
        let (size, ending) = (order.size.max(end), order.ending.filter(|_| !rest));
        let finish = move || match ending.filter(|_| file.writer_sets_times()) {
            Some(ending) => {
                flush_end::set_size_and_times(&*file, &seen, size, ending).map(|stat| Some(stat.stamp()))
            }
            None => flush_end::sync(&*file).map(|()| None),
        };
        let serves = self.serves(done.iter().map(|unit| unit.unit).collect());
        let left = self.parts.lease.block(&self.parts.runtime, serves, finish).await?;
        self.flushed_ends.raise(order.inode, end, self.parts.runtime.now());
        if order.distrust {
            self.read_back(&order, &digests).await?;
        }
        let flushed = Flushed { round: order.round, units: done, generation: order.generation };
        self.flushed.lock().insert(order.inode, flushed);
        Ok(UnitReply::Flushed { written, end, digests, rest, left })
    }

    /// Marks the units of a round clean.
    pub(super) async fn mark_round_clean(&self, inode: InodeId, round: u64) -> Result<()> {
        let _only = self.flush_locks.hold(inode).await;
        let flushed = {
            let mut all = self.flushed.lock();
            let known = all.get(&inode).is_some_and(|flushed| flushed.round == round);
            if known { all.remove(&inode) } else { None }
        };
        let Some(flushed) = flushed else {
            return Err(Fault::new(
                Errno::ESTALE,
                format!(
                    "{inode}: the agent was restarted and does not know this flush: the file stays dirty until the next one"
                ),
            ));
        };
        let _alone = self.file_locks.hold(inode).await;
        self.parts.copies.mark_clean(inode, &flushed.units, flushed.generation).await?;
        // Clean units must not become dirty again after a crash of the agent: another program may change the file from now on.
        self.parts.extents.sync(false).await
    }

    async fn open(&self, order: &Order, access: Access) -> Result<(Arc<dyn SharedFile>, FileStat)> {
        let (shared, path) = (self.parts.shared.clone(), order.path.clone());
        let (inode, size) = (order.inode, order.size);
        let open = move || {
            let (file, seen) = open_same(&*shared, &path, inode, access)?;
            if access == Access::Write {
                file.expect_size(size)?;
            }
            Ok((file, seen))
        };
        self.parts.runtime.block(open).await
    }

    /// Whether this node serves units of cached files when it is called.
    fn serves(&self, units: Vec<UnitId>) -> impl Fn() -> bool + Clone + Send + 'static {
        let (cluster, node) = (self.parts.cluster.clone(), self.parts.rpc.local());
        move || {
            let home = |unit: &UnitId| cluster.unit_home(Layout::Striped, *unit);
            units.iter().all(|unit| cluster.primary(home(unit)) == node)
        }
    }

    /// Writes the dirty bytes of one unit, and digests the resulting content of the shared file.
    async fn flush_unit(
        &self,
        file: &Arc<dyn SharedFile>,
        dirty: &DirtyUnit,
        order: &Order,
    ) -> Result<(u64, UnitDigest)> {
        let start = dirty.unit.start();
        let size = order.size.max(start + u64::from(dirty.ranges.end()));
        let (frame, held) = self.read_dirty(dirty, order.generation, Some(&order.path)).await?;
        let (own_file, ranges) = (file.clone(), dirty.ranges.clone());
        let distrust = order.distrust;
        let write = move || {
            if distrust {
                free_blocks(&*own_file, start, &ranges, size.max(own_file.stat()?.size));
            }
            write_ranges(&*own_file, start, &ranges, &frame).map(|()| frame)
        };
        let serves = self.serves(vec![dirty.unit]);
        let frame = self.parts.lease.block(&self.parts.runtime, serves, write).await?;
        let missing = held.gaps(0..digest::unit_length(size, dirty.unit.index));
        let digest = self.digest((file.clone(), &order.path), dirty.unit, missing, size, frame).await?;
        Ok((u64::from(dirty.ranges.len()), digest))
    }

    /// Reads all stored bytes of a unit. Returns their ranges. Fails if dirty bytes are missing.
    pub(super) async fn read_dirty(
        &self,
        DirtyUnit { unit, ranges, .. }: &DirtyUnit,
        generation: Generation,
        path: Option<&[u8]>,
    ) -> Result<(Frame, RangeSet)> {
        let frame = self.parts.flush_pool.take().await;
        let (frame, held) = self.read_held(*unit, WHOLE, frame, generation, path).await;
        let held = held?.ranges;
        if let Some(lost) = ranges.iter().find(|range| !held.contains(range)) {
            return Err(Fault::io(format!(
                "dirty bytes {lost:?} of unit {} of {} are missing in the store",
                unit.index, unit.inode
            )));
        }
        Ok((frame, held))
    }

    /// Digests a unit in a frame, after reading the `missing` bytes from the shared file.
    async fn digest(
        &self,
        file: (Arc<dyn SharedFile>, &[u8]),
        unit: UnitId,
        missing: Vec<Range<u32>>,
        size: u64,
        frame: Frame,
    ) -> Result<UnitDigest> {
        let length = digest::unit_length(size, unit.index);
        let gaps = Gaps { unit, ranges: missing, wanted: length };
        let (frame, _) = self.read_gaps(file, gaps, frame).await?;
        let digest = move || digest::of_unit(unit.index, &frame[..length as usize], size);
        Ok(self.parts.runtime.block(digest).await)
    }

    /// Checks that the shared file has the written bytes, bypassing the page cache of this host.
    async fn read_back(&self, order: &Order, written: &[UnitDigest]) -> Result<()> {
        for digest in written {
            let (path, size) = (order.path.clone(), digest::size_when_made(digest));
            if self.digests(order.inode, path, size, vec![digest.index]).await? != [*digest] {
                return Err(Fault::io(format!(
                    "fsync {}: it succeeded after a failed one, but unit {} reads back differently",
                    String::from_utf8_lossy(&order.path),
                    digest.index
                )));
            }
        }
        Ok(())
    }

    /// Digests units of the shared file, bypassing the page cache of this host.
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
        let generation = Generation(0);
        let (patient, distrust, round, ending) = (false, false, 0, None);
        let order = Order { inode, path, size, generation, patient, distrust, round, ending };
        let (file, _) = self.open(&order, Access::Read).await?;
        let forget = file.clone();
        self.parts.runtime.block(move || forget.forget_pages()).await?;
        let mut digests = Vec::with_capacity(units.len());
        for index in units {
            let frame = self.parts.flush_pool.take().await;
            let (unit, whole) = (UnitId { inode, index }, 0..digest::unit_length(size, index));
            digests.push(self.digest((file.clone(), &order.path), unit, vec![whole], size, frame).await?);
        }
        Ok(digests)
    }
}

/// Writes ranges of the unit at offset `start` to the shared file.
pub(super) fn write_ranges(
    file: &dyn SharedFile,
    start: u64,
    ranges: &RangeSet,
    content: &[u8],
) -> Result<()> {
    ranges.iter().try_for_each(|range| {
        let bytes = &content[range.start as usize..range.end as usize];
        file.write_at(bytes, start + u64::from(range.start))
    })
}

/// Frees the blocks that the next write of the unit at `start` covers, so that they get new extents. At the end of the file it frees the
/// last block too.
fn free_blocks(file: &dyn SharedFile, start: u64, ranges: &RangeSet, size: u64) {
    for range in ranges.iter() {
        let from = start + u64::from(range.start);
        let to = start + u64::from(range.end);
        let to = if to >= size { start + UNIT_SIZE as u64 } else { to };
        // The first call may fail because of an earlier write error. If the file system cannot free blocks, reading back still detects a
        // loss.
        let _ = (0..2).any(|_| file.allocate(Allocate::Punch, from, to - from).is_ok());
    }
}
