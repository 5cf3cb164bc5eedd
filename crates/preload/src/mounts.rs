//! Watches mounts, to find out whether this process may write to the views ([`tameike_ring::client::mounts`]).

use crate::{kernel, views};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, Ordering};

const NONE: i32 = -1;

/// Descriptor through which the kernel reports changes.
static WATCH: AtomicI32 = AtomicI32::new(NONE);

/// Starts to watch; the descriptor's number is `lowest` or above if possible.
pub fn watch(lowest: i32) -> Result<i32, Errno> {
    let number = kernel::move_up(tameike_ring::client::mounts::watch()?, lowest);
    WATCH.store(number, Ordering::SeqCst);
    Ok(number)
}

/// Returns the descriptor of the watch.
pub fn number() -> Option<i32> {
    Some(WATCH.load(Ordering::SeqCst)).filter(|number| *number != NONE)
}

pub fn forget() {
    WATCH.store(NONE, Ordering::SeqCst);
}

/// Returns whether all served views are still writable. The kernel reports each change to one thread only.
pub fn allow_changes() -> bool {
    match number().map(kernel::have_mounts_changed) {
        Some(Ok(false)) => true,
        Some(Ok(true)) => views::all().iter().filter_map(|view| view.root().ok()).all(kernel::is_writable),
        Some(Err(_)) | None => false,
    }
}
