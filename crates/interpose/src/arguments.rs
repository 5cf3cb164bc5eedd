//! What a C caller has given, as values that can be looked at.
//!
//! Each is of the size of the C argument. Its content is trusted as far as the C library trusts it: a pointer points to as much as
//! the call's contract says, and nobody else changes that during the call. Pointers that cannot be one (null, the first page, the
//! kernel's half) are told apart, so that they end in `EFAULT`.

use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_void};

/// Whether a program can have something at `address`. Bit 55 parts the kernel's half from the program's, also where the
/// bits above are a tag.
pub fn is_plausible<T>(pointer: *const T) -> bool {
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

    /// A string of this library's, for a call of the C library.
    pub fn of(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// Its bytes, unless there cannot be any.
    pub fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: the caller gave a string that ends with a zero byte, and leaves it alone during the call.
        is_plausible(self.0).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
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
