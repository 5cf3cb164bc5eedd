//! C arguments as Rust values.
//!
//! Each type has the size of the C argument. Arguments are trusted as in the C library: a pointer points to as much as the call's
//! contract states, and no other thread changes it during the call. Impossible pointers (null, the first page, the kernel's half) are
//! detected, so that calls fail with `EFAULT`.

use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_void};

/// Returns whether `pointer` can be an address of a program. Bit 55 distinguishes the kernel's half, even if higher bits hold a tag.
pub fn is_plausible<T>(pointer: *const T) -> bool {
    pointer.addr() >= 4096 && pointer.addr() & (1 << 55) == 0
}

/// A string, such as a path.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Converts an address.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Converts a string of this library, to call the C library.
    pub fn of(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// Returns the bytes, or `None` for an impossible pointer.
    pub fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: the caller passed a NUL-terminated string, and does not change it during the call.
        is_plausible(self.0).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

/// An array of values.
#[repr(transparent)]
pub struct Array<T>(*const T);

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T> Array<T> {
    /// Returns the first `count` values; `EFAULT` for an impossible pointer.
    pub fn values<'a>(self, count: usize) -> Result<&'a [T], Errno> {
        match count {
            0 => Ok(&[]),
            count if is_plausible(self.0) && count <= isize::MAX.cast_unsigned() / size_of::<T>() => {
                // SAFETY: the caller passed that many values, and does not change them during the call.
                Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
            }
            _ => Err(Errno::FAULT),
        }
    }
}

/// A pointer to one value.
#[repr(transparent)]
pub struct Pointer<T>(*mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> Pointer<T> {
    /// Converts an address.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast())
    }

    /// Writes the value; `EFAULT` for an impossible pointer.
    pub fn put(self, value: T) -> Result<(), Errno> {
        if !is_plausible(self.0) {
            return Err(Errno::FAULT);
        }
        // SAFETY: the caller passed memory for one such value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Casts to the type of the value's first field.
    pub fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }

    /// Reads the value, or returns `None` for an impossible pointer.
    pub fn get(self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the caller passed one such value.
        is_plausible(self.0).then(|| unsafe { self.0.read_unaligned() })
    }
}
