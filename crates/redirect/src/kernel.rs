//! Calls of the kernel, made without the C library: they do not come back here, and leave `errno` alone.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

pub type Result<T> = std::result::Result<T, Errno>;

/// A descriptor of the caller.
pub fn borrow<'a>(number: i32) -> Result<BorrowedFd<'a>> {
    match number {
        libc::AT_FDCWD => Ok(CWD),
        ..0 => Err(Errno::BADF),
        // SAFETY: the number is not negative. It stands for whatever the program has there, as in its own call.
        0.. => Ok(unsafe { BorrowedFd::borrow_raw(number) }),
    }
}

/// `open`.
pub fn open(path: &CString, flags: i32, mode: u32) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::from_bits_retain(flags.cast_unsigned()), Mode::from_raw_mode(mode))
}

/// `lstat`.
pub fn look(path: &CString) -> Result<Stat> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// Where a descriptor's file is now.
pub fn path_of(number: i32) -> Result<Vec<u8>> {
    borrow(number)?;
    rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).map(CString::into_bytes)
}

/// The working directory.
pub fn working_directory() -> Result<Vec<u8>> {
    rustix::process::getcwd(Vec::new()).map(CString::into_bytes)
}

/// A path for the kernel.
pub fn text(path: Vec<u8>) -> Result<CString> {
    CString::new(path).map_err(|_| Errno::INVAL)
}

/// Whether a `st_mode` is that of `kind` (`S_IFLNK`, ...).
pub fn is_kind(mode: u32, kind: u32) -> bool {
    mode & libc::S_IFMT == kind
}
