//! What a C caller has given, beside what all such libraries know ([`tameike_interpose::arguments`]): bytes, and what leads to
//! descriptors.

use super::Upgrade;
use crate::file::BYTES_MAX;
use crate::kernel::PARTS_MAX;
use crate::place;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use tameike_interpose::Verdict;
use tameike_interpose::arguments::is_plausible;
pub use tameike_interpose::arguments::{Array, Place, Text};

/// `/proc/self/fd/3` leads to the file of a descriptor.
impl Upgrade for Text {
    fn upgrade(&self) -> Result<(), Errno> {
        if !crate::connection::is_of_use() {
            return Ok(());
        }
        self.bytes().map_or(Ok(()), place::upgrade_link)
    }
}

/// Where bytes go.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Room(*mut u8);

impl Room {
    /// The one at an address that came as a number.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// The first `count` bytes, or as many as one call moves.
    pub fn bytes<'a>(self, count: usize) -> Result<&'a mut [u8], Errno> {
        match count.min(BYTES_MAX) {
            0 => Ok(&mut []),
            // SAFETY: the caller gave room for that many bytes to this call alone. They may never have been written: they are
            // only written here.
            count if is_plausible(self.0) => Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) }),
            _ => Err(Errno::FAULT),
        }
    }
}

/// Bytes to be written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bytes(*const u8);

impl Bytes {
    /// The one at an address that came as a number.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// The first `count`, or as many as one call moves.
    pub fn bytes<'a>(self, count: usize) -> Result<&'a [u8], Errno> {
        match count.min(BYTES_MAX) {
            0 => Ok(&[]),
            // SAFETY: the caller gave that many bytes, and leaves them alone during the call.
            count if is_plausible(self.0) => Ok(unsafe { std::slice::from_raw_parts(self.0, count) }),
            _ => Err(Errno::FAULT),
        }
    }
}

/// The parts of `readv` and its kin.
pub type Vector = Array<libc::iovec>;

/// What is done with them.
pub trait Parts {
    /// Calls `with` on as many bytes of the rooms as one call moves. `None`, when there are more parts than the ring takes.
    fn rooms<T>(self, count: c_int, with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>) -> Verdict<T>;
    /// As [`Self::rooms`], of bytes to be written.
    fn pieces<T>(self, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T>;
}

impl Parts for Vector {
    fn rooms<T>(self, count: c_int, with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut rooms: [&mut [u8]; PARTS_MAX] = std::array::from_fn(|_| Default::default());
        let mut left = BYTES_MAX;
        let parts = match parts(self, count)? {
            Ok(parts) => parts,
            Err(error) => return Some(Err(error)),
        };
        for (room, part) in rooms.iter_mut().zip(parts) {
            match Room(part.iov_base.cast()).bytes(part.iov_len.min(left)) {
                Ok(bytes) => *room = bytes,
                Err(error) => return Some(Err(error)),
            }
            left -= room.len();
        }
        with(rooms.get_mut(..parts.len())?)
    }

    fn pieces<T>(self, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut pieces: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let mut left = BYTES_MAX;
        let parts = match parts(self, count)? {
            Ok(parts) => parts,
            Err(error) => return Some(Err(error)),
        };
        for (piece, part) in pieces.iter_mut().zip(parts) {
            match Bytes(part.iov_base.cast()).bytes(part.iov_len.min(left)) {
                Ok(bytes) => *piece = bytes,
                Err(error) => return Some(Err(error)),
            }
            left -= piece.len();
        }
        with(pieces.get(..parts.len())?)
    }
}

fn parts<'a>(vector: Vector, count: c_int) -> Verdict<&'a [libc::iovec]> {
    let Ok(count) = usize::try_from(count) else { return Some(Err(Errno::INVAL)) };
    if count > PARTS_MAX {
        return None;
    }
    let parts = vector.values(count);
    let too_long = |parts: &&[libc::iovec]| parts.iter().any(|part| isize::try_from(part.iov_len).is_err());
    Some(parts.and_then(|parts| if too_long(&parts) { Err(Errno::INVAL) } else { Ok(parts) }))
}
