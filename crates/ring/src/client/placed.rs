//! Reading on a device by oneself, where the agent has told that bytes lie.
//!
//! Nothing keeps them there: they are right if their blocks have their checksums.

use super::Client;
use super::slots::Claim;
use crate::placed::{DEVICES_MAX, PLACED_SIZE, Placed};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::BLOCK_SIZE;
use tameike_io::blocks_have_sums;
use tameike_io::os::descriptor::DescriptorCell;
use tameike_io::os::socket::receive_file_now;

/// Bytes that are copied before their checksums are computed: few enough to be in the processor's cache still.
const PIECE_SIZE: usize = 16 * BLOCK_SIZE;

/// The devices that the agent has sent, by number.
#[derive(Debug, Default)]
pub(super) struct Devices {
    all: [DescriptorCell; DEVICES_MAX],
    /// One did not arrive.
    lacking: AtomicBool,
}

impl Devices {
    /// Whether it is of use to be told where bytes lie.
    pub fn are_here(&self) -> bool {
        !self.lacking.load(Ordering::Relaxed)
    }

    fn get(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.all.get(number)?.get()
    }

    fn put(&self, number: u8, device: OwnedFd) {
        if let Some(cell) = self.all.get(usize::from(number)) {
            cell.set(device);
        }
    }

    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.all.iter().filter_map(DescriptorCell::number)
    }
}

impl Client {
    /// Reads where the window tells that the bytes lie. Whether they were there; if not, `into` may hold anything.
    pub(super) fn read_placed(&self, claim: &Claim<'_>, into: &mut [u8]) -> bool {
        let mut bytes = [0; PLACED_SIZE];
        self.get(claim, std::iter::once(&mut bytes[..]));
        let Some(placed) = Placed::decode(&bytes, into.len()) else { return false };
        if self.devices.get(placed.device).is_none() {
            self.hear();
        }
        let Some(device) = self.devices.get(placed.device) else {
            // In a signal handler the call that was interrupted may have it in its hands.
            self.devices.lacking.store(true, Ordering::Relaxed);
            return false;
        };
        read_blocks(device, &placed, into)
    }

    /// Takes in what the agent has said since its welcome; whether it has closed the connection.
    pub(super) fn hear(&self) -> bool {
        let mut number = [0];
        loop {
            match receive_file_now(self.socket.as_fd(), &mut number) {
                Ok(Some((0, _))) => return true,
                Ok(Some((_, file))) => {
                    if let Some(device) = file.and_then(|file| self.kept_apart(file)) {
                        self.devices.put(number[0], device);
                    }
                }
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }
}

/// Reads blocks of which `into` are those bytes that are meant; whether they have their checksums.
fn read_blocks(device: BorrowedFd<'_>, placed: &Placed<'_>, into: &mut [u8]) -> bool {
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
            if rustix::io::preadv(device, &mut parts, at) != Ok(size)
                || !blocks_have_sums(&parts.each_ref().map(|part| &**part), placed.sums(done / BLOCK_SIZE))
            {
                return false;
            }
            (at, done) = (at + size as u64, done + size);
        }
    }
    true
}
