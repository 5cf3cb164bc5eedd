//! C arguments as Rust values.
//!
//! Each type has the size of the C argument. Arguments are trusted as in the C library: a pointer points to as much as the call's
//! contract states, and no other thread changes it during the call. Impossible pointers (null, the first page, the kernel's half) are
//! detected, so that calls fail with `EFAULT`.

use rustix::fs::CWD;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_void};
use std::os::fd::BorrowedFd;

/// Returns whether `pointer` can be an address of a program. Bit 55 distinguishes the kernel's half, even if higher bits hold a tag.
pub fn is_plausible<T>(pointer: *const T) -> bool {
    pointer.addr() >= 4096 && pointer.addr() & (1 << 55) == 0
}

/// Returns a descriptor by its number, which may be `AT_FDCWD`; `EBADF` for other negative numbers.
pub fn borrow<'a>(number: i32) -> Result<BorrowedFd<'a>, Errno> {
    match number {
        libc::AT_FDCWD => Ok(CWD),
        ..0 => Err(Errno::BADF),
        // SAFETY: the number is not negative. It names whatever the program has open there, as in the program's call.
        0.. => Ok(unsafe { BorrowedFd::borrow_raw(number) }),
    }
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
#[derive(Clone, Copy)]
pub struct Array<T>(*const T);

impl<T> Array<T> {
    /// Converts an address.
    pub fn at(address: *mut c_void) -> Self {
        Self(address.cast_const().cast())
    }

    /// Returns the address.
    pub fn address(self) -> *const c_void {
        self.0.cast()
    }

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
#[derive(Clone, Copy)]
pub struct Pointer<T>(*mut T);

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
