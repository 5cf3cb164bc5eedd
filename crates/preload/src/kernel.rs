//! System calls on descriptor numbers.
//!
//! They bypass the C library: they do not recurse into this library, do not change `errno`, and are no cancellation points.

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{DupFlags, Errno, FdFlags};
use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use tameike_interpose::arguments::borrow;
use tameike_ring::client::mounts;

/// Largest number of buffers of one call; the kernel serves calls with more.
pub const PARTS_MAX: usize = 64;

type Result<T> = std::result::Result<T, Errno>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub is_directory: bool,
}

/// Blocks signals of the calling thread, until dropped.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: libc::sigset_t,
}

/// Duplicates a descriptor to the lowest free number.
pub fn duplicate(number: i32, close_on_exec: bool) -> Result<i32> {
    let number = borrow(number)?;
    let copy =
        if close_on_exec { rustix::io::fcntl_dupfd_cloexec(number, 0) } else { rustix::io::dup(number) };
    copy.map(IntoRawFd::into_raw_fd)
}

/// Moves a descriptor to `lowest` or above if possible, with close-on-exec.
pub fn move_up(descriptor: OwnedFd, lowest: i32) -> i32 {
    rustix::io::fcntl_dupfd_cloexec(&descriptor, lowest).unwrap_or(descriptor).into_raw_fd()
}

pub fn close(number: i32) {
    // SAFETY: the caller owns the number, and gives it up.
    unsafe { rustix::io::close(number) };
}

pub fn open(directory: i32, name: &CStr, flags: i32) -> Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    rustix::fs::openat(borrow(directory)?, name, flags, Mode::empty())
}

/// Atomically makes `number` a duplicate of `source`, keeping close-on-exec.
pub fn replace(source: &OwnedFd, number: i32) -> Result<()> {
    let close_on_exec = rustix::io::fcntl_getfd(borrow(number)?)?.contains(FdFlags::CLOEXEC);
    let flags = if close_on_exec { DupFlags::CLOEXEC } else { DupFlags::empty() };
    // SAFETY: the number is not negative (checked above), and `ManuallyDrop` leaves it open for the program.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup3(source, &mut target, flags)
}

pub fn is_open(number: i32) -> bool {
    borrow(number).is_ok_and(|number| rustix::io::fcntl_getfd(number).is_ok())
}

pub fn seek(descriptor: &OwnedFd, offset: u64) -> Result<()> {
    rustix::fs::seek(descriptor, rustix::fs::SeekFrom::Start(offset)).map(drop)
}

pub fn write_at(number: i32, offset: u64, from: &[&[u8]]) -> Result<usize> {
    let mut parts = [IoSlice::new(&[]); PARTS_MAX];
    for (part, bytes) in parts.iter_mut().zip(from) {
        *part = IoSlice::new(bytes);
    }
    let count = from.len().min(parts.len());
    rustix::io::pwritev(borrow(number)?, parts.get(..count).unwrap_or_default(), offset)
}

/// Returns the identity of `path` below `directory`, or of `directory` if `path` is empty, as the kernel has it cached.
pub fn identity(directory: i32, path: &CStr) -> Result<Identity> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = rustix::fs::statx(borrow(directory)?, path, flags, StatxFlags::INO | StatxFlags::TYPE)?;
    Ok(Identity {
        device: rustix::fs::makedev(known.stx_dev_major, known.stx_dev_minor),
        inode: known.stx_ino,
        is_directory: u32::from(known.stx_mode) & libc::S_IFMT == libc::S_IFDIR,
    })
}

/// Returns whether mounts have changed since the last call for `number`.
pub fn have_mounts_changed(number: i32) -> Result<bool> {
    mounts::have_changed(borrow(number)?)
}

/// Returns whether the mount of an open directory is writable.
pub fn is_writable(directory: i32) -> bool {
    borrow(directory).is_ok_and(mounts::is_writable)
}

/// Reads the beginning of a file of `/proc`.
pub fn read_start<'a>(path: &CStr, into: &'a mut [u8]) -> Result<&'a [u8]> {
    let file = open(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let count = rustix::io::read(file.as_fd(), &mut *into)?;
    close(file.into_raw_fd());
    Ok(into.get(..count).unwrap_or_default())
}

/// Returns the user of the process, if its real and effective users are the same.
pub fn user() -> Option<u32> {
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    (real == effective).then(|| real.as_raw())
}

pub fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

impl SignalsBlocked {
    /// Blocks all signals of the calling thread.
    pub fn new() -> Self {
        // SAFETY: a set of signals is plain bits, for which zeros are a value; both calls only write to what they are given.
        unsafe {
            let mut before: libc::sigset_t = std::mem::zeroed();
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the previous one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
