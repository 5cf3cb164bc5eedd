//! Fetches bytes that the node lacks: from the memory of a cache holder, or from the shared file system by whole units, which are kept.

use super::UnitService;
use super::gaps::Gaps;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::{HOLDER_TIMEOUT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::{Counter, counters};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Generation, NodeId, Result, UnitId};
use tameike_fabric::Answer;
use tameike_io::shared::{Access, Seek, SharedFile, open_same};
use tameike_io::{Frame, Payload};

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;
/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// Cache holders that are asked before the shared file is read.
const HOLDERS_TRIED_MAX: usize = 4;

/// Whether holes of the shared file are read as zeros, and kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    Read,
    Skipped,
}

/// The parts of a gap of a unit, which begins at `start`, for which the file has data: all of it where the file system does not report
/// holes.
fn data_in(file: &dyn SharedFile, start: u64, gap: Range<u32>) -> Vec<Range<u32>> {
    let (mut parts, mut at, end) = (Vec::new(), start + u64::from(gap.start), start + u64::from(gap.end));
    while at < end {
        let first = match file.seek(Seek::Data, at) {
            Ok(first) => first,
            Err(fault) if fault.errno == Errno::ENXIO => break,
            Err(_) => at,
        };
        if first >= end {
            break;
        }
        let last = file.seek(Seek::Hole, first).map_or(end, |hole| hole.clamp(first + 1, end));
        parts.push((first - start) as u32..(last - start) as u32);
        at = last;
    }
    parts
}

/// Fills the gaps in `range` of a unit in `frame` from `bytes`, which has all of the range.
pub(super) fn filled(mut frame: Frame, range: Range<u32>, gaps: Vec<Range<u32>>, bytes: &[u8]) -> Payload {
    for gap in gaps {
        let part = (gap.start - range.start) as usize..(gap.end - range.start) as usize;
        frame[gap.start as usize..gap.end as usize].copy_from_slice(&bytes[part]);
    }
    Payload::new(Arc::new(frame), range)
}

/// Counts of bytes that this node lacked and fetched.
#[derive(Default)]
pub(super) struct Loaded {
    shared: AtomicU64,
    holders: AtomicU64,
}

impl UnitService {
    /// The source of those bytes.
    pub fn counters(&self) -> Vec<Counter> {
        let Loaded { shared, holders } = &self.loaded;
        let named = [(counters::LOADED_SHARED, shared), (counters::LOADED_HOLDERS, holders)];
        named.map(|(name, bytes)| Counter::new(name, bytes.load(Ordering::Relaxed))).into()
    }

    /// Reads the bytes `range` of a unit, after a read of the shared file for what is missing of the whole unit.
    pub(super) async fn fetch(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
        path: Vec<u8>,
    ) -> Result<Payload> {
        let _uncut = self.file_locks.share(unit.inode).await;
        let _only = self.unit_locks.hold(unit).await;
        let (frame, held) = self.read_held(unit, WHOLE, frame, generation, Some(&path)).await;
        let held = held?.ranges;
        if held.contains(&range) {
            return Ok(Payload::new(Arc::new(frame), range));
        }
        let read = self
            .read_shared(unit, (frame, held.gaps(WHOLE)), range.end, (path, generation), Holes::Read)
            .await?;
        let (frame, _) = self.keep(unit, read, generation, u64::MAX).await;
        Ok(Payload::new(frame, range))
    }

    /// Reads the data of a unit that is not held here from the shared file, and keeps it if there is space, or units that were not used
    /// after `victims_until` can be evicted. Returns the ranges that it read.
    pub(super) async fn fill(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        (generation, victims_until): (Generation, u64),
        path: Vec<u8>,
    ) -> Result<RangeSet> {
        let _uncut = self.file_locks.share(unit.inode).await;
        let _only = self.unit_locks.hold(unit).await;
        let gaps = self.parts.extents.held(unit, generation).await?.gaps(range.clone());
        let read =
            self.read_shared(unit, (frame, gaps), range.end, (path, generation), Holes::Skipped).await?;
        let (_, kept) = self.keep(unit, read, generation, victims_until).await;
        Ok(kept.into_iter().collect())
    }

    /// Asks cache holders of this generation for bytes. The bytes are passed on and not kept: kept bytes must be valid for all readers, and
    /// the file may have been truncated or written since.
    pub(super) async fn read_holders(
        &self,
        unit: UnitId,
        range: &Range<u32>,
        generation: Generation,
        holders: Vec<NodeId>,
    ) -> Option<Payload> {
        let (offset, length) = (range.start, range.end - range.start);
        let clock = &self.parts.runtime.clock;
        let began = clock.monotonic();
        for node in
            holders.into_iter().filter(|node| !self.time_limit.is_silent(*node)).take(HOLDERS_TRIED_MAX)
        {
            if clock.monotonic() - began > HOLDER_TIMEOUT / 2 {
                break;
            }
            let request = Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation });
            let frame = self.parts.read_pool.try_take();
            match self.time_limit.call(&*self.parts.rpc, node, request, frame).await {
                Ok(Answer { reply: Reply::Client(ClientReply::Read), payload: Some(bytes) })
                    if bytes.len() == range.len() =>
                {
                    self.loaded.holders.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Some(bytes);
                }
                Ok(_) => {}
                Err(fault) => log::debug!("{node} was asked for bytes of {}: {fault}", unit.inode),
            }
        }
        None
    }

    /// Keeps bytes of the shared file on the device if it has space. Returns what was read.
    async fn keep(
        &self,
        unit: UnitId,
        (frame, parts): (Frame, Vec<Range<u32>>),
        generation: Generation,
        victims_until: u64,
    ) -> (Arc<Frame>, Vec<Range<u32>>) {
        let frame = Arc::new(frame);
        let _allocation = self.allocations.begin();
        for part in &parts {
            self.loaded.shared.fetch_add(part.len() as u64, Ordering::Relaxed);
            let bytes = Payload::new(frame.clone(), part.clone());
            let filled = self.parts.extents.fill(unit, part.start, bytes, generation, victims_until).await;
            if let Err(fault) = filled {
                log::warn!("cannot keep what was read of {}: {fault}", unit.inode);
            }
        }
        (frame, parts)
    }

    /// Reads `gaps` from the shared file into the frame, and returns the parts that the file has. The reader needs bytes up to `wanted`.
    async fn read_shared(
        &self,
        unit: UnitId,
        (frame, gaps): (Frame, Vec<Range<u32>>),
        wanted: u32,
        (path, generation): (Vec<u8>, Generation),
        holes: Holes,
    ) -> Result<(Frame, Vec<Range<u32>>)> {
        let mut reading = self.begin_reading(unit.inode, generation);
        let (shared, own_path, known) = (self.parts.shared.clone(), path.clone(), reading.file.take());
        let open = move || {
            let (file, stat) = match known {
                Some(file) => (file, None),
                None => {
                    let (file, stat) = open_same(&*shared, &own_path, unit.inode, Access::Read)?;
                    (file, Some(stat))
                }
            };
            let ranges = match holes {
                Holes::Read => gaps,
                Holes::Skipped => {
                    let stat = stat.map_or_else(|| file.stat(), Ok)?;
                    // A file with all of its blocks has no holes.
                    let has_holes = stat.blocks * STAT_BLOCK < stat.size;
                    let data = |gap| if has_holes { data_in(&*file, unit.start(), gap) } else { vec![gap] };
                    gaps.into_iter().flat_map(data).collect()
                }
            };
            Ok::<_, Fault>((file, Gaps { unit, ranges, wanted }))
        };
        let (file, gaps) = self.parts.runtime.block(open).await?;
        let (frame, mut parts) = self.read_gaps((file.clone(), &path), gaps, frame).await?;
        self.end_reading(&reading, unit.inode, generation, file);
        parts.retain(|part| !part.is_empty());
        Ok((frame, parts))
    }
}
