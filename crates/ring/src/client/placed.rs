//! Reads on a device at the location that the agent has returned.
//!
//! The bytes may move at any time: they are valid if the blocks match their checksums, and the device's clock says that none was freed.

use super::Client;
use super::slots::Claim;
use crate::placed::{DEVICES_MAX, PLACED_SIZE, Placed};
use rustix::io::{Errno, preadv};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::BLOCK_SIZE;
use tameike_io::blocks_have_sums;
use tameike_io::disk::is_as_of;
use tameike_io::os::descriptor::DescriptorCell;
use tameike_io::os::socket::{is_hung_up, receive_files_now};

/// Bytes that are copied before their checksums are computed: few enough to stay in the processor's cache.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// Devices that the agent has sent, by number.
#[derive(Debug, Default)]
pub(super) struct Devices {
    all: [Device; DEVICES_MAX],
    /// A device did not arrive, or was closed.
    are_lacking: AtomicBool,
}

#[derive(Debug, Default)]
struct Device {
    bytes: DescriptorCell,
    /// Set last.
    clock: DescriptorCell,
}

impl Devices {
    /// Returns true if the program can use locations.
    pub fn are_here(&self) -> bool {
        !self.are_lacking.load(Ordering::Relaxed)
    }

    /// Descriptors of the bytes and the clock.
    fn get(&self, number: usize) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        let device = self.all.get(number)?;
        let clock = device.clock.get()?;
        Some((device.bytes.get()?, clock))
    }

    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.all.iter().flat_map(|device| [&device.bytes, &device.clock]).filter_map(DescriptorCell::number)
    }
}

impl Client {
    /// Reads the bytes at the location in the window. Returns false if they have moved; `into` may hold anything then.
    pub(super) fn read_placed(&self, claim: &Claim<'_>, into: &mut [u8]) -> bool {
        let mut bytes = [0; PLACED_SIZE];
        self.get(claim, std::iter::once(&mut bytes[..]));
        let Some(placed) = Placed::decode(&bytes, into.len()) else { return false };
        if self.devices.get(placed.device).is_none() {
            self.receive_devices();
        }
        // Another thread, or a call that this signal handler has interrupted, may be receiving it.
        let Some((device, clock)) = self.devices.get(placed.device) else { return false };
        let read = read_blocks(device, &placed, into);
        if read == Err(Errno::BADF) {
            // The program has closed the descriptor.
            self.devices.are_lacking.store(true, Ordering::Relaxed);
        }
        read == Ok(true) && is_as_of(clock, placed.parts(), placed.time)
    }

    /// Receives the devices that the agent has sent.
    fn receive_devices(&self) {
        let mut number = [0];
        while let Ok(Some((size, files))) = receive_files_now(self.socket.as_fd(), &mut number) {
            if size == 0 {
                return;
            }
            let kept = files.map(|file| file.and_then(|file| self.keep_descriptor(file)));
            match (self.devices.all.get(usize::from(number[0])), kept) {
                (Some(device), [Some(bytes), Some(clock)]) => {
                    device.bytes.set(bytes);
                    device.clock.set(clock);
                }
                _ => self.devices.are_lacking.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Returns true if the agent has closed the connection.
    pub(super) fn is_alone(&self) -> bool {
        is_hung_up(self.socket.as_fd())
    }
}

/// Reads blocks, of which `into` gets the wanted bytes; returns true if all checksums match.
fn read_blocks(device: BorrowedFd<'_>, placed: &Placed<'_>, into: &mut [u8]) -> rustix::io::Result<bool> {
    // Unwanted bytes of a block: of the first one, then of the last.
    let mut rest = [0; BLOCK_SIZE];
    // Bytes of blocks read so far.
    let mut done = 0;
    for run in placed.parts() {
        let (mut at, end) = (run.at, run.at + u64::from(run.length));
        while at < end {
            let skipped = placed.skip.saturating_sub(done);
            let most = if skipped > 0 { BLOCK_SIZE } else { PIECE_SIZE };
            let size = most.min((end - at) as usize);
            let first = done.saturating_sub(placed.skip);
            let count = (into.len() - first).min(size - skipped);
            let (head, tail) = rest[..size - count].split_at_mut(skipped);
            let mut parts = [
                IoSliceMut::new(head),
                IoSliceMut::new(&mut into[first..first + count]),
                IoSliceMut::new(tail),
            ];
            if preadv(device, &mut parts, at)? != size
                || !blocks_have_sums(&parts.each_ref().map(|part| &**part), placed.sums(done / BLOCK_SIZE))
            {
                return Ok(false);
            }
            (at, done) = (at + size as u64, done + size);
        }
    }
    Ok(true)
}
