//! Reads and scrubs of units.

use super::record::{BLOCK, Extent, UnitRecord, blocks_of, bytes_of, within};
use super::{ExtentStore, ScrubReport, check_range};
use crate::locks::Shared;
use std::ops::Range;
use tameike_core::ranges::RangeSet;
use tameike_core::{Fault, Generation, HomeSet, Result, UnitId};
use tameike_io::{BlockSums, Frame};

/// The part of a requested range that a unit has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Byte ranges that were read.
    pub ranges: RangeSet,
    /// The checksums of their blocks, if the whole request was read and consists of whole blocks.
    pub sums: Option<BlockSums>,
}

fn overlap(extent: &Extent, blocks: &Range<u32>) -> Range<u32> {
    extent.first.max(blocks.start)..extent.blocks().end.min(blocks.end)
}

/// Splits `blocks` into runs whose bytes are all in `wanted`, and single blocks of which only some are.
fn split(blocks: Range<u32>, wanted: &RangeSet) -> (Vec<Range<u32>>, Vec<u32>) {
    let (mut whole, mut partial): (Vec<Range<u32>>, Vec<u32>) = (Vec::new(), Vec::new());
    for block in blocks {
        let bytes = bytes_of(&(block..block + 1));
        if wanted.contains(&bytes) {
            match whole.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => whole.push(block..block + 1),
            }
        } else if !within(wanted, &bytes).is_empty() {
            partial.push(block);
        }
    }
    (whole, partial)
}

impl ExtentStore {
    /// Reads blocks of one extent to their offsets in the frame, and verifies them.
    async fn read_extent(
        &self,
        unit: UnitId,
        extent: &Extent,
        blocks: &Range<u32>,
        frame: Frame,
    ) -> (Frame, Result<()>) {
        let device = extent.device + u64::from(blocks.start - extent.first);
        let bytes = bytes_of(blocks);
        let (frame, result) = self.disk.read(device * u64::from(BLOCK), frame, bytes.clone()).await;
        let result = result.and_then(|()| {
            match extent.mismatch(blocks, &frame[bytes.start as usize..bytes.end as usize]) {
                None => Ok(()),
                Some(block) => Err(Fault::io(format!(
                    "unit {} of {} is damaged: the checksum of block {block} of the extents file does not match. \
                     Its bytes are lost on this node; check the device",
                    unit.index, unit.inode
                ))),
            }
        });
        (frame, result)
    }

    /// Reads whole blocks from the device; blocks that the unit lacks are zero.
    pub(super) async fn read_blocks(
        &self,
        unit: UnitId,
        record: &UnitRecord,
        blocks: &Range<u32>,
        mut frame: Frame,
    ) -> (Frame, Result<()>) {
        let bytes = bytes_of(blocks);
        if record.blocks_among(blocks) < u64::from(blocks.end - blocks.start) {
            frame[bytes.start as usize..bytes.end as usize].fill(0);
        }
        for extent in &record.extents {
            let part = overlap(extent, blocks);
            if part.start < part.end {
                let (filled, result) = self.read_extent(unit, extent, &part, frame).await;
                if result.is_err() {
                    return (filled, result);
                }
                frame = filled;
            }
        }
        (frame, Ok(()))
    }

    /// Reads the bytes of `range` that the unit has to the same offsets of `frame`, and returns which they are; other
    /// bytes of the frame do not change. Cached units: drops clean bytes of an older generation first.
    ///
    /// # Errors
    /// `EIO` if the disk fails or a checksum does not match; then the message names the unit.
    pub async fn read(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
    ) -> (Frame, Result<Held>) {
        if let Err(fault) = check_range(range.start, range.len()) {
            return (frame, Err(fault));
        }
        let (guard, record) = match self.share(unit, generation).await {
            Ok((guard, Some(record))) => (guard, record),
            Ok((_, None)) => return (frame, Ok(Held::default())),
            Err(fault) => return (frame, Err(fault)),
        };
        let wanted = within(&record.held, &range);
        let (frame, result) = self.read_record(unit, &record, &range, &wanted, frame).await;
        if unit.inode.is_cached() {
            self.accounting.lock().touch(unit, record.is_clean());
        }
        drop(guard);
        let sums = record.whole_blocks(&range).map(|blocks| record.sums(&blocks));
        (frame, result.map(|()| Held { ranges: wanted, sums }))
    }

    /// The byte ranges that a unit has, without reading them. Drops clean bytes of an older generation first. Counts as
    /// a use.
    pub async fn held(&self, unit: UnitId, generation: Generation) -> Result<RangeSet> {
        let (_guard, record) = self.share(unit, generation).await?;
        let Some(record) = record else { return Ok(RangeSet::default()) };
        if unit.inode.is_cached() {
            self.accounting.lock().touch(unit, record.is_clean());
        }
        Ok(record.held)
    }

    /// Locks a unit for reading and loads its record; drops clean bytes of an older generation of a cached unit first.
    pub(super) async fn share(
        &self,
        unit: UnitId,
        generation: Generation,
    ) -> Result<(Shared<UnitId>, Option<UnitRecord>)> {
        let guard = self.locks.share(unit).await;
        let record = self.load(unit)?;
        let stale = |record: &UnitRecord| {
            unit.inode.is_cached() && record.generation < generation && record.has_clean()
        };
        if !record.as_ref().is_some_and(stale) {
            return Ok((guard, record));
        }
        drop(guard);
        self.set_generation(unit, generation).await?;
        let guard = self.locks.share(unit).await;
        Ok((guard, self.load(unit)?))
    }

    async fn set_generation(&self, unit: UnitId, generation: Generation) -> Result<()> {
        self.run_detached(|store| async move {
            let mut change = store.begin(unit).await?;
            change.set_generation(generation);
            change.commit()
        })
        .await
    }

    /// Reads whole blocks directly into the frame, and copies the wanted bytes of others.
    async fn read_record(
        &self,
        unit: UnitId,
        record: &UnitRecord,
        range: &Range<u32>,
        wanted: &RangeSet,
        mut frame: Frame,
    ) -> (Frame, Result<()>) {
        let mut scratch = None;
        for extent in &record.extents {
            let (whole, partial) = split(overlap(extent, &blocks_of(range)), wanted);
            for run in whole {
                let (filled, result) = self.read_extent(unit, extent, &run, frame).await;
                frame = filled;
                if result.is_err() {
                    return (frame, result);
                }
            }
            for block in partial {
                let blocks = block..block + 1;
                let free = match scratch.take() {
                    Some(free) => free,
                    None => self.scratch.take().await,
                };
                let (filled, result) = self.read_extent(unit, extent, &blocks, free).await;
                if result.is_err() {
                    return (frame, result);
                }
                for bytes in within(wanted, &bytes_of(&blocks)).iter() {
                    let bytes = bytes.start as usize..bytes.end as usize;
                    frame[bytes.clone()].copy_from_slice(&filled[bytes]);
                }
                scratch = Some(filled);
            }
        }
        (frame, Ok(()))
    }

    /// Reads every unit and verifies its checksums. The report lists damaged units.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        for unit in self.units_of(&HomeSet::All) {
            self.scrub_unit(unit?, &mut report).await;
        }
        Ok(report)
    }

    async fn scrub_unit(&self, unit: UnitId, report: &mut ScrubReport) {
        let _guard = self.locks.share(unit).await;
        let record = match self.load(unit) {
            Ok(Some(record)) => record,
            Ok(None) => return,
            Err(fault) => {
                report.damaged.push((unit, fault.to_string()));
                return;
            }
        };
        let frame = self.scratch.take().await;
        let blocks = 0..record.extents.last().map_or(0, |last| last.blocks().end);
        let (_, result) = self.read_blocks(unit, &record, &blocks, frame).await;
        report.units += 1;
        report.bytes += record.block_count() * u64::from(BLOCK);
        if let Err(fault) = result {
            report.damaged.push((unit, fault.to_string()));
        }
    }
}
