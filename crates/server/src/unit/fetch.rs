//! Bytes that the node does not hold come from a node that has them in memory, or from the shared file system: from there once,
//! by whole units, and are kept.

use super::UnitService;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::limits::{HOLDER_PATIENCE, UNIT_SIZE};
use tameike_core::wire::admin::{Counter, counters};
use tameike_core::wire::client::{ClientReply, ClientRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Generation, NodeId, Result, UnitId};
use tameike_io::fabric::Answer;
use tameike_io::shared::{Access, SharedFile, open_same};
use tameike_io::{Frame, Payload};

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;
/// Holders that are asked before the shared file is read.
const HOLDERS_TRIED_MAX: usize = 4;

/// The bytes `gap` of a unit that begins at `start`, read into their place; zeros beyond the end of the file.
/// Gives the end of what was read.
pub(super) fn read_gap(file: &dyn SharedFile, start: u64, gap: &Range<u32>, frame: &mut [u8]) -> Result<u32> {
    let part = &mut frame[gap.start as usize..gap.end as usize];
    let count = file.read_at(part, start + u64::from(gap.start))?;
    part[count..].fill(0);
    Ok(gap.start + count as u32)
}

/// The bytes `range` of a unit in `frame`, with those in `gaps` from `bytes`, which has all of the range.
pub(super) fn filled(mut frame: Frame, range: Range<u32>, gaps: Vec<Range<u32>>, bytes: &[u8]) -> Payload {
    for gap in gaps {
        let part = (gap.start - range.start) as usize..(gap.end - range.start) as usize;
        frame[gap.start as usize..gap.end as usize].copy_from_slice(&bytes[part]);
    }
    Payload::new(Arc::new(frame), range)
}

/// Bytes that this node did not hold and got.
#[derive(Default)]
pub(super) struct Loaded {
    shared: AtomicU64,
    holders: AtomicU64,
}

impl UnitService {
    /// Where what the node did not hold came from.
    pub fn counters(&self) -> Vec<Counter> {
        let Loaded { shared, holders } = &self.loaded;
        let named = [(counters::LOADED_SHARED, shared), (counters::LOADED_HOLDERS, holders)];
        named.map(|(name, bytes)| Counter::new(name, bytes.load(Ordering::Relaxed))).into()
    }

    /// Reads the unit from the shared file where it is not held, and gives the bytes `range`.
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
        let (frame, kept) = self.read_shared(unit, frame, held.gaps(WHOLE), path).await?;
        let frame = Arc::new(frame);
        for part in kept {
            self.loaded.shared.fetch_add(part.len() as u64, Ordering::Relaxed);
            self.keep(unit, part.start, Payload::new(frame.clone(), part.clone()), generation).await;
        }
        Ok(Payload::new(frame, range))
    }

    /// Bytes that one of these nodes has in memory, for who has opened this version. They are passed on and not kept: what this node
    /// keeps must be true for all, and the file may have been cut or written since.
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
        for node in holders.into_iter().filter(|node| !self.patience.is_silent(*node)).take(HOLDERS_TRIED_MAX)
        {
            if clock.monotonic() - began > HOLDER_PATIENCE / 2 {
                break;
            }
            let request = Request::Client(ClientRequest::ReadHeld { unit, offset, length, generation });
            let frame = self.parts.read_pool.try_take();
            match self.patience.call(&*self.parts.rpc, node, request, frame).await {
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

    /// Keeps clean bytes on the device, where it has room.
    async fn keep(&self, unit: UnitId, start: u32, bytes: Payload, generation: Generation) {
        if let Err(fault) = self.parts.extents.fill(unit, start, bytes, generation).await {
            log::warn!("cannot keep what was read of {}: {fault}", unit.inode);
        }
    }

    /// Reads `gaps` from the shared file into the frame, and gives the parts that the file has.
    async fn read_shared(
        &self,
        unit: UnitId,
        mut frame: Frame,
        gaps: Vec<Range<u32>>,
        path: Vec<u8>,
    ) -> Result<(Frame, Vec<Range<u32>>)> {
        let shared = self.parts.shared.clone();
        let read = move || {
            let (file, _) = open_same(&*shared, &path, unit.inode, Access::Read)?;
            let mut kept = Vec::with_capacity(gaps.len());
            for gap in gaps {
                let end = read_gap(&*file, unit.start(), &gap, &mut frame)?;
                kept.push(gap.start..end);
            }
            kept.retain(|part| !part.is_empty());
            Ok((frame, kept))
        };
        self.parts.runtime.block(read).await
    }
}
