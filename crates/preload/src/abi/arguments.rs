//! C arguments beyond those of [`tameike_interpose::arguments`]: buffers, and values that refer to descriptors.

use super::Upgrade;
use crate::file::BYTES_MAX;
use crate::kernel::PARTS_MAX;
use crate::view_path;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use tameike_interpose::Verdict;
use tameike_interpose::arguments::is_plausible;
pub use tameike_interpose::arguments::{Array, Pointer, Text};

/// Paths such as `/proc/self/fd/3` refer to descriptors.
impl Upgrade for Text {
    fn upgrade(&self) -> Result<(), Errno> {
        if !crate::connection::is_enabled() {
            return Ok(());
        }
        self.bytes().map_or(Ok(()), view_path::upgrade_link)
    }
}

/// Output buffer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Buffer(*mut u8);

impl Buffer {
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Returns the first `count` bytes, at most [`BYTES_MAX`].
    pub fn bytes<'a>(self, count: usize) -> Result<&'a mut [u8], Errno> {
        match count.min(BYTES_MAX) {
            0 => Ok(&mut []),
            // SAFETY: the caller passed a buffer of that many bytes for this call alone. It may be uninitialized, but
            // is only written here.
            count if is_plausible(self.0) => Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) }),
            _ => Err(Errno::FAULT),
        }
    }
}

/// Input buffer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bytes(*const u8);

impl Bytes {
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Returns the first `count` bytes, at most [`BYTES_MAX`].
    pub fn bytes<'a>(self, count: usize) -> Result<&'a [u8], Errno> {
        match count.min(BYTES_MAX) {
            0 => Ok(&[]),
            // SAFETY: the caller passed that many bytes, and does not change them during the call.
            count if is_plausible(self.0) => Ok(unsafe { std::slice::from_raw_parts(self.0, count) }),
            _ => Err(Errno::FAULT),
        }
    }
}

/// Buffers of `readv` and similar calls.
pub type Vector = Array<libc::iovec>;

/// Access to the buffers of a vector.
pub trait Parts {
    /// Calls `with` on the buffers, up to [`BYTES_MAX`] bytes. `None` if there are more buffers than the ring supports.
    fn buffers<T>(self, count: c_int, with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>) -> Verdict<T>;
    /// As [`Self::buffers`], for input buffers.
    fn slices<T>(self, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T>;
}

impl Parts for Vector {
    fn buffers<T>(self, count: c_int, with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut buffers: [&mut [u8]; PARTS_MAX] = std::array::from_fn(|_| Default::default());
        let mut left = BYTES_MAX;
        let parts = match parts(self, count)? {
            Ok(parts) => parts,
            Err(error) => return Some(Err(error)),
        };
        for (buffer, part) in buffers.iter_mut().zip(parts) {
            match Buffer(part.iov_base.cast()).bytes(part.iov_len.min(left)) {
                Ok(bytes) => *buffer = bytes,
                Err(error) => return Some(Err(error)),
            }
            left -= buffer.len();
        }
        with(buffers.get_mut(..parts.len())?)
    }

    fn slices<T>(self, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T> {
        let mut slices: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let mut left = BYTES_MAX;
        let parts = match parts(self, count)? {
            Ok(parts) => parts,
            Err(error) => return Some(Err(error)),
        };
        for (slice, part) in slices.iter_mut().zip(parts) {
            match Bytes(part.iov_base.cast()).bytes(part.iov_len.min(left)) {
                Ok(bytes) => *slice = bytes,
                Err(error) => return Some(Err(error)),
            }
            left -= slice.len();
        }
        with(slices.get(..parts.len())?)
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
