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

    /// Returns the address.
    pub fn address(self) -> *const c_void {
        self.0.cast_const().cast()
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
pub type Bytes = Array<u8>;

/// Buffers of `readv` and similar calls.
pub type Vector = Array<libc::iovec>;

/// Calls `with` on the output buffers of a vector, up to [`BYTES_MAX`] bytes. `None` if there are more buffers than the ring supports.
pub fn with_buffers<T>(
    vector: Vector,
    count: c_int,
    with: impl FnOnce(&mut [&mut [u8]]) -> Verdict<T>,
) -> Verdict<T> {
    let mut buffers: [&mut [u8]; PARTS_MAX] = std::array::from_fn(|_| Default::default());
    let filled = parts(vector, count)?.and_then(|parts| {
        buffers.iter_mut().zip(parts).try_for_each(|(buffer, (start, size))| {
            *buffer = Buffer::at(start).bytes(size)?;
            Ok(())
        })
    });
    match filled {
        Ok(()) => with(buffers.get_mut(..count as usize)?),
        Err(error) => Some(Err(error)),
    }
}

/// As [`with_buffers`], for input buffers.
pub fn with_slices<T>(vector: Vector, count: c_int, with: impl FnOnce(&[&[u8]]) -> Verdict<T>) -> Verdict<T> {
    let mut slices: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
    let filled = parts(vector, count)?.and_then(|parts| {
        slices.iter_mut().zip(parts).try_for_each(|(slice, (start, size))| {
            *slice = Bytes::at(start).values(size)?;
            Ok(())
        })
    });
    match filled {
        Ok(()) => with(slices.get(..count as usize)?),
        Err(error) => Some(Err(error)),
    }
}

/// Returns the addresses and sizes of buffers, truncated to [`BYTES_MAX`] bytes in total.
fn parts(vector: Vector, count: c_int) -> Verdict<impl Iterator<Item = (*mut c_void, usize)>> {
    let Ok(count) = usize::try_from(count) else { return Some(Err(Errno::INVAL)) };
    if count > PARTS_MAX {
        return None;
    }
    let truncated = |left: &mut usize, part: &libc::iovec| {
        let size = part.iov_len.min(*left);
        *left -= size;
        Some((part.iov_base, size))
    };
    Some(vector.values(count).and_then(|parts| {
        let is_too_long = parts.iter().any(|part| isize::try_from(part.iov_len).is_err());
        if is_too_long { Err(Errno::INVAL) } else { Ok(parts.iter().scan(BYTES_MAX, truncated)) }
    }))
}
