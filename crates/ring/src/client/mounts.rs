//! Detects whether a process may change a view through its mounts: a mount may be read-only, or become so while the program runs.
//!
//! Requests through the ring bypass the mount. The kernel reports changes of mounts to a process that polls `/proc/self/mountinfo`; a check
//! costs one system call.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat};
use rustix::io::Result;
use rustix::io::retry_on_intr;
use rustix::time::Timespec;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Opens a descriptor by which the kernel reports changes of mounts.
pub fn watch() -> Result<OwnedFd> {
    openat(CWD, c"/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns true if mounts have changed since `watch` was opened or polled the last time. Only one thread sees each change.
pub fn have_changed(watch: BorrowedFd<'_>) -> Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(watch, PollFlags::PRI)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| poll(&mut polled, Some(&at_once))).map(|ready| ready > 0)
}

/// Returns true if the mount of an open directory is writable.
pub fn is_writable(directory: BorrowedFd<'_>) -> bool {
    fstatvfs(directory).is_ok_and(|known| !known.f_flag.contains(StatVfsMountFlags::RDONLY))
}
