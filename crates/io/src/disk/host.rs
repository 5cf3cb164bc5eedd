//! The devices in memory of the agents of one host, which other processes read by themselves.

use super::DiskMemory;
use crate::slab::{BlockSums, Frame, Payload};
use rustix::io::pread;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::{Place, Run};
use tameike_core::wire::unit::UnitPlace;

/// Bytes that are copied before their checksums are computed: few enough to be in the processor's cache still.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// A device in memory of an agent of this host, to be read by others.
///
/// Nothing keeps its blocks as they are while they are read: to hold them would be to have writers on that agent wait for those
/// who read. As blocks are not overwritten, but freed and used again, the clock tells whether they may have been, and their checksums
/// whether the device has them as they were.
#[derive(Debug)]
pub struct HostDevice(DiskMemory);

impl HostDevice {
    /// That of a disk.
    pub fn new(memory: DiskMemory) -> Self {
        Self(memory)
    }

    /// For others to read it by.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.bytes.as_fd(), self.0.clock.as_fd()]
    }

    /// Copies what lies there to the start of `frame`, which comes back if it is (any more) something else than what was meant.
    pub fn read(&self, place: &Place, mut frame: Frame) -> Result<Payload, Frame> {
        match self.copy(&place.runs, place.time, &mut frame) {
            Some((length, sums)) if sums.digest() == place.digest => {
                Ok(Payload::new(Arc::new(frame), 0..length).with_sums(sums))
            }
            _ => Err(frame),
        }
    }

    /// Copies these bytes of a unit that lies there, and what else is in their blocks, to the start of `frame`; none if it is (any
    /// more) something else than what was meant.
    pub fn read_unit(&self, place: &UnitPlace, bytes: &Range<u32>, mut frame: Frame) -> Option<Payload> {
        let runs: Vec<Run> = place.runs_of(bytes).collect();
        let (_, sums) = self.copy(&runs, place.time, &mut frame)?;
        let start = bytes.start % BLOCK_SIZE as u32;
        let is_it = sums.as_bytes() == place.sums_of(bytes);
        is_it.then(|| Payload::new(Arc::new(frame), start..start + bytes.len() as u32))
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
        let is_as_it_was = self.0.is_as_of(runs.iter().copied(), time);
        is_as_it_was.then(|| (filled as u32, BlockSums::from_bytes(sums)))
    }
}
