//! System calls that bypass the C library: they do not recurse into this library, and do not change `errno`.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;
pub use tameike_interpose::arguments::borrow;

pub type Result<T> = std::result::Result<T, Errno>;

pub fn open(path: &CString, flags: i32, mode: u32) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::from_bits_retain(flags.cast_unsigned()), Mode::from_raw_mode(mode))
}

/// `open` without following symbolic links: `ELOOP` if the path has one.
pub fn open_plain(path: &CString, flags: i32, mode: u32) -> Result<OwnedFd> {
    let makes = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let mode = Mode::from_raw_mode(if makes { mode } else { 0 });
    let open = |flags: i32| {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        rustix::fs::openat2(CWD, path, flags, mode, ResolveFlags::NO_SYMLINKS)
    };
    match open(flags) {
        // The packer is packing the file (it holds a lease), which ends soon. O_NONBLOCK is not meant for that.
        Err(Errno::AGAIN) if flags & libc::O_NONBLOCK != 0 => {
            let file = open(flags & !libc::O_NONBLOCK)?;
            let now = rustix::fs::fcntl_getfl(&file)?;
            rustix::fs::fcntl_setfl(&file, now | OFlags::NONBLOCK)?;
            Ok(file)
        }
        opened => opened,
    }
}

pub fn lstat(path: &CString) -> Result<Stat> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// Returns the current path of an open file.
pub fn path_of(number: i32) -> Result<Vec<u8>> {
    borrow(number)?;
    rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).map(CString::into_bytes)
}

pub fn working_directory() -> Result<Vec<u8>> {
    rustix::process::getcwd(Vec::new()).map(CString::into_bytes)
}

/// Returns the directory from which relative paths start.
pub fn start_of(directory: i32) -> Result<Vec<u8>> {
    if directory == libc::AT_FDCWD { working_directory() } else { path_of(directory) }
}

pub fn text(path: Vec<u8>) -> Result<CString> {
    CString::new(path).map_err(|_| Errno::INVAL)
}

/// Returns whether a `st_mode` has the type `kind` (`S_IFLNK`, ...).
pub fn is_kind(mode: u32, kind: u32) -> bool {
    mode & libc::S_IFMT == kind
}
