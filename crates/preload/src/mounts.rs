//! Whether this process may change the views ([`tameike_ring::client::mounts`]).

use crate::{kernel, views};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, Ordering};

const NONE: i32 = -1;

/// The descriptor by which the kernel tells.
static WATCH: AtomicI32 = AtomicI32::new(NONE);

/// Has the kernel tell of changes from now on; the descriptor's number is `lowest` or above where that can be had.
pub fn watch(lowest: i32) -> Result<i32, Errno> {
    let number = kernel::move_up(kernel::watch_mounts()?, lowest);
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
        Some(Ok(true)) => views::all().iter().filter_map(|view| view.root().ok()).all(kernel::is_writable),
        Some(Err(_)) | None => false,
    }
}
