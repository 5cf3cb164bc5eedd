//! Whether this process may change a view by its mounts: one may be for reading only, or become so while the program runs.
//!
//! What the agent is asked through the ring passes by the mount. The kernel tells who has `/proc/self/mountinfo` open, and asks,
//! that something was mounted, unmounted or mounted otherwise where the process is; asking costs one system call.

use crate::{kernel, views};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, Ordering};

const NONE: i32 = -1;

/// The descriptor by which the kernel tells.
static WATCH: AtomicI32 = AtomicI32::new(NONE);

/// Has the kernel tell of changes from now on; the descriptor's number is `lowest` or above where that can be had.
pub fn watch(lowest: i32) -> Result<i32, Errno> {
    let opened = kernel::open(libc::AT_FDCWD, c"/proc/self/mountinfo", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let number = kernel::move_up(opened, lowest);
    WATCH.store(number, Ordering::SeqCst);
    Ok(number)
}

/// The number of the descriptor by which the kernel tells.
pub fn number() -> Option<i32> {
    Some(WATCH.load(Ordering::SeqCst)).filter(|number| *number != NONE)
}

/// The kernel tells no more.
pub fn forget() {
    WATCH.store(NONE, Ordering::SeqCst);
}

/// Whether each view that is served may be changed, as far as the kernel has told. One thread is told of each change.
pub fn allow_changes() -> bool {
    match number().map(kernel::have_mounts_changed) {
        Some(Ok(false)) => true,
        Some(Ok(true)) => views::all().iter().filter_map(|view| view.root().ok()).all(is_writable),
        Some(Err(_)) | None => false,
    }
}

/// Whether the mount of an open directory may be written to.
pub fn is_writable(directory: i32) -> bool {
    kernel::is_read_only(directory) == Ok(false)
}
