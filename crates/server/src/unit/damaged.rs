//! Drops damaged clean bytes of cached files; the shared file system still has them.

use super::UnitService;
use std::ops::Range;
use tameike_core::ranges::RangeSet;
use tameike_core::{Errno, Fault, Generation, HomeId, Result, UnitId};
use tameike_io::Frame;
use tameike_store::extent::{Damaged, Held, Pieces};

/// The path of the file if it is known, otherwise its inode number.
fn name(unit: UnitId, path: Option<&[u8]>) -> String {
    path.map_or_else(|| unit.inode.to_string(), |path| String::from_utf8_lossy(path).into_owned())
}

/// Formats ranges of the unit as offsets in the file.
fn format_ranges(unit: UnitId, ranges: &RangeSet) -> String {
    let offset = |at: u32| unit.start() + u64::from(at);
    let ranges = ranges.iter().map(|range| format!("{} to {}", offset(range.start), offset(range.end - 1)));
    ranges.collect::<Vec<_>>().join(", ")
}

/// The error to return after damaged clean bytes were dropped: it lists the lost dirty ranges.
fn with_lost_ranges(unit: UnitId, path: Option<&[u8]>, lost: &RangeSet, fault: Fault) -> Fault {
    if lost.is_empty() {
        return fault;
    }
    let (file, lost) = (name(unit, path), format_ranges(unit, lost));
    fault.context(format_args!(
        "bytes {lost} of {file} are lost: the job has written them, and this node's device has damaged them before \
         they were flushed"
    ))
}

impl UnitService {
    /// Reads from the store. Damaged clean bytes count as missing.
    pub(super) async fn read_held(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
        path: Option<&[u8]>,
    ) -> (Frame, Result<Held>) {
        let extents = &self.parts.extents;
        let (frame, held) = extents.read(unit, range.clone(), frame, generation).await;
        if !matches!(&held, Err(fault) if unit.inode.is_cached() && fault.errno == Errno::EIO) {
            return (frame, held);
        }
        let lost = self.drop_damaged(unit, path).await;
        let (frame, held) = extents.read(unit, range, frame, generation).await;
        (frame, held.map_err(|fault| with_lost_ranges(unit, path, &lost, fault)))
    }

    /// Writes bytes of a unit on all replicas.
    pub(super) async fn write(
        &self,
        home: HomeId,
        unit: UnitId,
        pieces: Pieces,
        generation: Generation,
    ) -> Result<()> {
        let store = |pieces| self.store(home, unit, pieces, generation);
        self.parts.copies.write(home, unit, pieces, generation, store).await
    }

    /// Writes to the store. A partial write of a block reads the rest of the block from the store: damaged clean bytes there are dropped.
    async fn store(&self, home: HomeId, unit: UnitId, pieces: Pieces, generation: Generation) -> Result<()> {
        let (extents, is_cached) = (&self.parts.extents, unit.inode.is_cached());
        let written = extents.write(home, unit, pieces.clone(), is_cached, generation).await;
        if !matches!(&written, Err(fault) if is_cached && fault.errno == Errno::EIO) {
            return written;
        }
        let lost = self.drop_damaged(unit, None).await;
        let written = extents.write(home, unit, pieces, is_cached, generation).await;
        written.map_err(|fault| with_lost_ranges(unit, None, &lost, fault))
    }

    /// Drops the damaged clean bytes of a unit. Returns the damaged dirty ranges, which are lost.
    async fn drop_damaged(&self, unit: UnitId, path: Option<&[u8]>) -> RangeSet {
        let Damaged { dropped, lost } = match self.parts.extents.drop_damaged(unit).await {
            Ok(damaged) => damaged,
            Err(fault) => {
                log::warn!("cannot check for damage in {}: {fault}", name(unit, path));
                return RangeSet::new();
            }
        };
        if !dropped.is_empty() {
            log::warn!(
                "this node's device has changed bytes {} of {}, which the shared file system has: they are fetched \
                 again from there. Check the device",
                format_ranges(unit, &dropped),
                name(unit, path)
            );
        }
        lost
    }
}
