//! Reads on a device at the location that the agent has returned.
//!
//! The bytes may move at any time: they are valid if the blocks match their checksums, and the device's clock says that none was freed.

use super::Client;
use super::slots::Claim;
use crate::extent_location::{ExtentLocation, LOCATION_SIZE};
use rustix::io::{Errno, preadv};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use tameike_core::limits::BLOCK_SIZE;
use tameike_io::blocks_have_sums;
use tameike_io::disk::is_as_of;
use tameike_io::os::socket::is_hung_up;

/// Bytes that are copied before their checksums are computed: few enough to stay in the processor's cache.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

impl Client {
    /// Reads the bytes at the location in the window. Returns false if they have moved; `into` may hold anything then.
    pub(super) fn read_located(&self, claim: &Claim<'_>, into: &mut [u8]) -> bool {
        let mut bytes = [0; LOCATION_SIZE];
        self.get(claim, std::iter::once(&mut bytes[..]));
        let Some(location) = ExtentLocation::decode(&bytes, into.len()) else { return false };
        if self.received.devices.get(location.device).is_none() {
            self.receive();
        }
        // Another thread, or a call that this signal handler has interrupted, may be receiving it.
        let Some((device, clock)) = self.received.devices.get(location.device) else { return false };
        let read = read_blocks(device, &location, into);
        if read == Err(Errno::BADF) {
            // The program has closed the descriptor.
            self.received.devices.lack();
        }
        read == Ok(true) && is_as_of(clock, location.parts(), location.time)
    }

    /// Returns true if the agent has closed the connection.
    pub(super) fn is_alone(&self) -> bool {
        is_hung_up(self.socket.as_fd())
    }
}

/// Reads blocks, of which `into` gets the wanted bytes; returns true if all checksums match.
fn read_blocks(
    device: BorrowedFd<'_>,
    location: &ExtentLocation<'_>,
    into: &mut [u8],
) -> rustix::io::Result<bool> {
    // Unwanted bytes of a block: of the first one, then of the last.
    let mut rest = [0; BLOCK_SIZE];
    // Bytes of blocks read so far.
    let mut done = 0;
    for run in location.parts() {
        let (mut at, end) = (run.at, run.at + u64::from(run.length));
        while at < end {
            let skipped = location.skip.saturating_sub(done);
            let most = if skipped > 0 { BLOCK_SIZE } else { PIECE_SIZE };
            let size = most.min((end - at) as usize);
            let first = done.saturating_sub(location.skip);
            let count = (into.len() - first).min(size - skipped);
            let (head, tail) = rest[..size - count].split_at_mut(skipped);
            let mut parts = [
                IoSliceMut::new(head),
                IoSliceMut::new(&mut into[first..first + count]),
                IoSliceMut::new(tail),
            ];
            if preadv(device, &mut parts, at)? != size
                || !blocks_have_sums(&parts.each_ref().map(|part| &**part), location.sums(done / BLOCK_SIZE))
            {
                return Ok(false);
            }
            (at, done) = (at + size as u64, done + size);
        }
    }
    Ok(true)
}
