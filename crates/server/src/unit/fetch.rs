//! Bytes that the node does not hold come from the shared file system: once, by whole units, and are kept.

use super::UnitService;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Generation, Result, UnitId};
use tameike_io::shared::{Access, SharedFile, open_same};
use tameike_io::{Frame, Payload};

const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;

/// The bytes `gap` of a unit that begins at `start`, read into their place; zeros beyond the end of the file.
/// Gives the end of what was read.
pub(super) fn read_gap(file: &dyn SharedFile, start: u64, gap: &Range<u32>, frame: &mut [u8]) -> Result<u32> {
    let part = &mut frame[gap.start as usize..gap.end as usize];
    let count = file.read_at(part, start + u64::from(gap.start))?;
    part[count..].fill(0);
    Ok(gap.start + count as u32)
}

impl UnitService {
    /// Reads the unit from the shared file where it is not held, and gives the bytes `range`.
    pub(super) async fn fetch(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
        path: Vec<u8>,
    ) -> Result<Payload> {
        let extents = &self.parts.extents;
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
            let payload = Payload::new(frame.clone(), part.clone());
            if let Err(fault) = extents.fill(unit, part.start, payload, generation).await {
                log::warn!("cannot keep what was read of {}: {fault}", unit.inode);
            }
        }
        Ok(Payload::new(frame, range))
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
