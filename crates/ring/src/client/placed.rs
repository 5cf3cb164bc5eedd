//! Reading on a device by oneself, where the agent has told that bytes lie.
//!
//! Nothing keeps them there: they are right if their blocks have their checksums.

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

/// Bytes that are copied before their checksums are computed: few enough to be in the processor's cache still.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// The devices that the agent has sent, by number.
#[derive(Debug, Default)]
pub(super) struct Devices {
    all: [Device; DEVICES_MAX],
    /// One did not arrive, or is gone.
    are_lacking: AtomicBool,
}

#[derive(Debug, Default)]
struct Device {
    bytes: DescriptorCell,
    /// Here last.
    clock: DescriptorCell,
}

impl Devices {
    /// Whether it is of use to be told where bytes lie.
    pub fn are_here(&self) -> bool {
        !self.are_lacking.load(Ordering::Relaxed)
    }

    /// Bytes and clock.
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
    /// Reads where the window tells that the bytes lie. Whether they were there; if not, `into` may hold anything.
    pub(super) fn read_placed(&self, claim: &Claim<'_>, into: &mut [u8]) -> bool {
        let mut bytes = [0; PLACED_SIZE];
        self.get(claim, std::iter::once(&mut bytes[..]));
        let Some(placed) = Placed::decode(&bytes, into.len()) else { return false };
        if self.devices.get(placed.device).is_none() {
            self.receive_devices();
        }
        // Another thread, or a call that this one has interrupted, may have it in its hands.
        let Some((device, clock)) = self.devices.get(placed.device) else { return false };
        let read = read_blocks(device, &placed, into);
        if read == Err(Errno::BADF) {
            // The program has closed it.
            self.devices.are_lacking.store(true, Ordering::Relaxed);
        }
        read == Ok(true) && is_as_of(clock, placed.parts(), placed.time)
    }

    /// Takes in the devices that the agent has sent.
    fn receive_devices(&self) {
        let mut number = [0];
        while let Ok(Some((size, files))) = receive_files_now(self.socket.as_fd(), &mut number) {
            if size == 0 {
                return;
            }
            let kept = files.map(|file| file.and_then(|file| self.kept_apart(file)));
            match (self.devices.all.get(usize::from(number[0])), kept) {
                (Some(device), [Some(bytes), Some(clock)]) => {
                    device.bytes.set(bytes);
                    device.clock.set(clock);
                }
                _ => self.devices.are_lacking.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Whether the agent has closed the connection.
    pub(super) fn is_alone(&self) -> bool {
        is_hung_up(self.socket.as_fd())
    }
}

/// Reads blocks of which `into` are those bytes that are meant; whether they have their checksums.
fn read_blocks(device: BorrowedFd<'_>, placed: &Placed<'_>, into: &mut [u8]) -> rustix::io::Result<bool> {
    // For what is not meant, of one block: of the first one, then of the last.
    let mut rest = [0; BLOCK_SIZE];
    // Bytes of the blocks that were read.
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
