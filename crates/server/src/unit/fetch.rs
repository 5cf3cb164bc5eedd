//! Fetches bytes that the node lacks, from the memory of a cache holder or from the shared file system. It stores whole units of the
//! latter.

use super::gaps::Gaps;
use super::{ReadOrder, UnitService};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::{HOLDER_TIMEOUT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::{Counter, counters};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, Generation, Layout, NodeId, Result, UnitId};
use tameike_fabric::Answer;
use tameike_io::shared::{Access, Seek, SharedFile, open_same};
use tameike_io::{Frame, Payload};

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;
/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// Maximum number of cache holders to try before the shared file.
const HOLDERS_MAX: usize = 4;

/// Holes of the shared file are read as zeros, and stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    Read,
    Skipped,
}

/// Returns the parts of a gap for which the file has data, in a unit at offset `start`. The whole gap if the file system does not report
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

/// Fills the gaps in `range` of a unit in `frame` from `bytes`, which covers the range.
pub(super) fn filled(mut frame: Frame, range: Range<u32>, gaps: Vec<Range<u32>>, bytes: &[u8]) -> Payload {
    for gap in gaps {
        let part = (gap.start - range.start) as usize..(gap.end - range.start) as usize;
        frame[gap.start as usize..gap.end as usize].copy_from_slice(&bytes[part]);
    }
    Payload::new(Arc::new(frame), range)
}

/// Counters of the bytes that this node lacked and fetched.
#[derive(Default)]
pub(super) struct Loaded {
    shared: AtomicU64,
    holders: AtomicU64,
}

impl UnitService {
    /// Returns the counters by source.
    pub fn counters(&self) -> Vec<Counter> {
        let Loaded { shared, holders } = &self.loaded;
        let named = [(counters::LOADED_SHARED, shared), (counters::LOADED_PEER_MEMORY, holders)];
        named.map(|(name, bytes)| Counter::new(name, bytes.load(Ordering::Relaxed))).into()
    }

    /// Returns the bytes `range` of a unit, after reading all missing bytes of the unit from the shared file.
    pub(super) async fn fetch(&self, order: ReadOrder, frame: Frame, path: Vec<u8>) -> Result<Payload> {
        let ReadOrder { unit, range, generation } = order;
        let _file_guard = self.file_locks.share(unit.inode).await;
        let _unit_guard = self.unit_locks.hold(unit).await;
        let (frame, held) = self.read_held(unit, WHOLE, frame, generation, Some(&path)).await;
        let held = held?.ranges;
        if held.contains(&range) {
            return Ok(Payload::new(Arc::new(frame), range));
        }
        let read = self
            .read_shared(unit, (frame, held.gaps(WHOLE)), range.end, (path, generation), Holes::Read)
            .await?;
        let (frame, _) = self.store_fetched(unit, read, generation, u64::MAX).await;
        Ok(Payload::new(frame, range))
    }

    /// Reads the missing data of a unit from the shared file. Stores it if the node has space, or can evict units that were last used
    /// before `victims_until`. Returns the ranges that it read.
    pub(super) async fn fill(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        (generation, victims_until): (Generation, u64),
        path: Vec<u8>,
    ) -> Result<RangeSet> {
        let _file_guard = self.file_locks.share(unit.inode).await;
        let _unit_guard = self.unit_locks.hold(unit).await;
        let gaps = self.parts.extents.held(unit, generation).await?.gaps(range.clone());
        let read =
            self.read_shared(unit, (frame, gaps), range.end, (path, generation), Holes::Skipped).await?;
        let (_, stored) = self.store_fetched(unit, read, generation, victims_until).await;
        Ok(stored.into_iter().collect())
    }

    /// Reads bytes from cache holders of this generation. The node does not store them: stored bytes must be valid for all readers, and the
    /// file may have been truncated or written since.
    pub(super) async fn read_holders(&self, order: &ReadOrder, holders: Vec<NodeId>) -> Option<Payload> {
        let &ReadOrder { unit, ref range, generation } = order;
        let (offset, length) = (range.start, range.end - range.start);
        let clock = &self.parts.runtime.clock;
        let began = clock.monotonic();
        for node in holders.into_iter().filter(|node| !self.time_limit.is_silent(*node)).take(HOLDERS_MAX) {
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
                Err(fault) => log::debug!("cannot read {} from {node}: {fault}", unit.inode),
            }
        }
        None
    }

    /// Stores bytes of the shared file if the device has space. Returns the ranges that were read.
    async fn store_fetched(
        &self,
        unit: UnitId,
        (frame, parts): (Frame, Vec<Range<u32>>),
        generation: Generation,
        victims_until: u64,
    ) -> (Arc<Frame>, Vec<Range<u32>>) {
        let frame = Arc::new(frame);
        let _allocation = self.allocations.begin();
        let home = self.parts.cluster.unit_home(Layout::Striped, unit);
        for part in &parts {
            self.loaded.shared.fetch_add(part.len() as u64, Ordering::Relaxed);
            let bytes = Payload::new(frame.clone(), part.clone());
            let filled =
                self.parts.extents.fill(home, unit, part.start, bytes, generation, victims_until).await;
            if let Err(fault) = filled {
                log::warn!("cannot store fetched bytes of {}: {fault}", unit.inode);
            }
        }
        (frame, parts)
    }

    /// Reads `gaps` from the shared file into the frame. Returns the parts that the file has. The reader needs the bytes up to `wanted`.
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
                    // A fully allocated file has no holes.
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
