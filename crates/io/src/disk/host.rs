//! Devices in memory of the agents of one host, which other processes read directly.

use super::DiskMemory;
use crate::slab::{BlockSums, Frame, Payload};
use rustix::io::pread;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::{ExtentLocation, Run};
use tameike_core::wire::unit::UnitLocation;

/// Bytes that are copied before their checksums are computed, few enough to stay in the processor's cache.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// The device in memory of an agent of this host, for direct reads.
///
/// Reads take no locks, since a lock would block the writers of the other agent. Blocks are never overwritten, only freed and
/// reused. So the clock shows whether a block may have been reused, and the checksums show whether the device still has its
/// content.
#[derive(Debug)]
pub struct HostDevice(DiskMemory);

impl HostDevice {
    /// The device with this memory.
    pub fn new(memory: DiskMemory) -> Self {
        Self(memory)
    }

    /// Descriptors for other processes: of the bytes, and of the clock.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.bytes.as_fd(), self.0.clock.as_fd()]
    }

    /// Copies the bytes at a location into `frame`. Returns the frame as an error if the location is stale or damaged.
    pub fn read(&self, place: &ExtentLocation, mut frame: Frame) -> Result<Payload, Frame> {
        match self.copy(&place.runs, place.time, &mut frame) {
            Some((length, sums)) if sums.digest() == place.digest => {
                Ok(Payload::new(Arc::new(frame), 0..length).with_sums(sums))
            }
            _ => Err(frame),
        }
    }

    /// Copies the blocks with these bytes of a unit into `frame`. `None` if the location is stale or damaged.
    pub fn read_unit(&self, place: &UnitLocation, bytes: &Range<u32>, mut frame: Frame) -> Option<Payload> {
        let runs: Vec<Run> = place.runs_of(bytes).collect();
        let (_, sums) = self.copy(&runs, place.time, &mut frame)?;
        let start = bytes.start % BLOCK_SIZE as u32;
        let matches = sums.as_bytes() == place.sums_of(bytes);
        matches.then(|| Payload::new(Arc::new(frame), start..start + bytes.len() as u32))
    }

    fn copy(&self, runs: &[Run], time: u64, frame: &mut Frame) -> Option<(u32, BlockSums)> {
        let (mut filled, mut sums) = (0, Vec::new());
        for run in runs {
            let target = frame.get_mut(filled..)?.get_mut(..run.length as usize)?;
            for (number, piece) in target.chunks_mut(PIECE_SIZE).enumerate() {
                let at = run.at.checked_add((number * PIECE_SIZE) as u64)?;
                if pread(&self.0.bytes, &mut *piece, at) != Ok(piece.len()) {
                    return None;
                }
                sums.extend_from_slice(BlockSums::of(piece).as_bytes());
            }
            filled += run.length as usize;
        }
        let is_valid = self.0.is_as_of(runs.iter().copied(), time);
        is_valid.then(|| (filled as u32, BlockSums::from_bytes(sums)))
    }
}
