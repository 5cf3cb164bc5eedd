//! What a C caller has given, as values that can be looked at.
//!
//! Each is of the size of the C argument. Its content is trusted as far as the C library trusts it: a pointer points to as much as
//! the call's contract says, and nobody else changes that during the call. Pointers that cannot be one (null, the first page, the
//! kernel's half) are told apart, so that they end in `EFAULT`.

use super::Upgrade;
use crate::file::{BYTES_MAX, PARTS_MAX, Verdict};
use crate::place;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Whether a program can have something at `address`. Bit 55 parts the kernel's half from the program's, also where the
/// bits above are a tag.
fn is_plausible<T>(pointer: *const T) -> bool {
    pointer.addr() >= 4096 && pointer.addr() & (1 << 55) == 0
}

/// A path.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The one at an address that came as a number.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Its bytes, unless there cannot be any.
    pub fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: the caller gave a string that ends with a zero byte, and leaves it alone during the call.
        is_plausible(self.0).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

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

/// An array of values that the caller gave.
#[repr(transparent)]
pub struct Array<T>(*const T);

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T> Array<T> {
    /// Its first `count` values.
    pub fn values<'a>(self, count: usize) -> Result<&'a [T], Errno> {
        match count {
            0 => Ok(&[]),
            count if is_plausible(self.0) && count <= isize::MAX.cast_unsigned() / size_of::<T>() => {
                // SAFETY: the caller gave that many, and leaves them alone during the call.
                Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
            }
            _ => Err(Errno::FAULT),
        }
    }
}

/// Where one value goes.
#[repr(transparent)]
pub struct Place<T>(*mut T);

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> Place<T> {
    /// The one at an address that came as a number.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Writes it.
    pub fn put(self, value: T) -> Result<(), Errno> {
        if !is_plausible(self.0) {
            return Err(Errno::FAULT);
        }
        // SAFETY: the caller gave room for one such value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The same place of another type, that what is there begins with.
    pub fn cast<U>(self) -> Place<U> {
        Place(self.0.cast())
    }

    /// Reads it.
    pub fn get(self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the caller gave one such value.
        is_plausible(self.0).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// The parts of `readv` and its kin.
pub type Vector = Array<libc::iovec>;

impl Vector {
    /// Calls `with` on as many bytes of the rooms as one call moves. `None`, when there are more parts than the ring takes.
    pub fn rooms<T>(self, count: c_int, with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut rooms: [&mut [u8]; PARTS_MAX] = std::array::from_fn(|_| Default::default());
        let mut left = BYTES_MAX;
        let parts = match self.parts(count)? {
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

    /// As [`Self::rooms`], of bytes to be written.
    pub fn pieces<T>(self, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut pieces: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let mut left = BYTES_MAX;
        let parts = match self.parts(count)? {
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

    fn parts<'a>(self, count: c_int) -> Verdict<&'a [libc::iovec]> {
        let Ok(count) = usize::try_from(count) else { return Some(Err(Errno::INVAL)) };
        if count > PARTS_MAX {
            return None;
        }
        let parts = self.values(count);
        let too_long =
            |parts: &&[libc::iovec]| parts.iter().any(|part| isize::try_from(part.iov_len).is_err());
        Some(parts.and_then(|parts| if too_long(&parts) { Err(Errno::INVAL) } else { Ok(parts) }))
    }
}
