//! The device of another agent, that this one reads by itself.

use crate::slab::{BlockSums, Frame, Payload};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::call::Place;

/// Bytes that are copied before their checksums are computed: few enough to be in the processor's cache still.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// A device in memory of another agent of this host.
///
/// Nothing keeps its blocks as they are while they are read: to hold them would be to have writers on that agent wait for this
/// one. As blocks are not overwritten, but freed and used again, their checksums tell whether they were.
#[derive(Debug)]
pub struct PeerDevice(File);

impl PeerDevice {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// Copies what lies there to the start of `frame`, which comes back if it is (any more) something else than what was meant.
    pub(super) fn read(&self, place: &Place, mut frame: Frame) -> Result<Payload, Frame> {
        match self.copy(place, &mut frame) {
            Some((length, sums)) if sums.digest() == place.digest => {
                Ok(Payload::new(Arc::new(frame), 0..length).with_sums(sums))
            }
            _ => Err(frame),
        }
    }

    fn copy(&self, place: &Place, frame: &mut Frame) -> Option<(u32, BlockSums)> {
        let (mut filled, mut sums) = (0, Vec::new());
        for run in &place.runs {
            let target = frame.get_mut(filled..)?.get_mut(..run.length as usize)?;
            for (number, piece) in target.chunks_mut(PIECE_SIZE).enumerate() {
                self.0.read_exact_at(piece, run.at.checked_add((number * PIECE_SIZE) as u64)?).ok()?;
                sums.extend_from_slice(BlockSums::of(piece).as_bytes());
            }
            filled += run.length as usize;
        }
        Some((filled as u32, BlockSums::from_bytes(sums)))
    }
}
