//! Whether a process may change a view by its mounts: one may be for reading only, or become so while the program runs.
//!
//! What the agent is asked through the ring passes by the mount. The kernel tells who has `/proc/self/mountinfo` open, and asks,
//! that something was mounted, unmounted or mounted otherwise where the process is; asking costs one system call.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat};
use rustix::io::Result;
use rustix::io::retry_on_intr;
use rustix::time::Timespec;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Has the kernel tell of changes of mounts from now on, by the descriptor.
///
/// # Errors
/// There is no `/proc`, or no number left.
pub fn watch() -> Result<OwnedFd> {
    openat(CWD, c"/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether mounts have changed since `watch` was made, or asked the last time: one thread is told of each change.
///
/// # Errors
/// The descriptor is not what [`watch`] has returned.
pub fn have_changed(watch: BorrowedFd<'_>) -> Result<bool> {
    let mut asked = [PollFd::from_borrowed_fd(watch, PollFlags::PRI)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| poll(&mut asked, Some(&at_once))).map(|told| told > 0)
}

/// Whether the mount of an open directory may be written to.
pub fn is_writable(directory: BorrowedFd<'_>) -> bool {
    fstatvfs(directory).is_ok_and(|known| !known.f_flag.contains(StatVfsMountFlags::RDONLY))
}
