//! How a descriptor of the ring becomes the kernel's, for good.

use crate::kernel::{self, SignalsBlocked};
use crate::table::{self, Entry, Opened};
use crate::{connection, views};
use rustix::io::Errno;
use std::ffi::CStr;
use tameike_ring::client::{Answer, HANDOVER_NAME_SIZE};

/// What of the flags has been done when the file was opened.
const DONE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_NOFOLLOW;

/// Has the file of `number` be the kernel's; nothing to do where it is, or nothing is there.
pub fn one(number: i32) -> Result<(), Errno> {
    let Some(entry) = table::entry(number) else { return Ok(()) };
    if entry.is_free() || connection::is_foreign() {
        return Ok(());
    }
    // A handler that came between would wait for this upgrade, which waits for the handler.
    let blocked = SignalsBlocked::new();
    let Some(opened) = entry.begin_upgrade()? else { return Ok(()) };
    let outcome = hand_over(entry, number, opened);
    let last = match outcome {
        Ok(()) => entry.end_upgrade(),
        Err(_) => None,
    };
    drop(blocked);
    if let Some(handle) = last {
        connection::close_handle(handle);
    }
    outcome
}

/// Has all files be the kernel's. One that cannot stays where it is, and its next call tells why.
pub fn all() {
    if connection::is_foreign() {
        return;
    }
    for number in table::numbers() {
        if table::entry(number).is_some_and(Entry::is_ring) {
            let _ = one(number);
        }
    }
}

/// The kernel opens the same file and takes the number over; what fails leaves all as it was.
fn hand_over(entry: &Entry, number: i32, opened: Opened) -> Result<(), Errno> {
    let file = match open_again(opened) {
        Ok(file) => file,
        Err(error) => {
            entry.fail_upgrade(None);
            return Err(error);
        }
    };
    let offset = entry.take_offset();
    let outcome = kernel::seek(&file, offset).and_then(|()| kernel::replace(&file, number));
    if outcome.is_err() {
        entry.fail_upgrade(Some(offset));
    }
    kernel::close(std::os::fd::IntoRawFd::into_raw_fd(file));
    outcome
}

fn open_again(opened: Opened) -> Result<std::os::fd::OwnedFd, Errno> {
    let root = views::by_number(opened.view).ok_or(Errno::IO)?.root()?;
    let mut name = [0_u8; HANDOVER_NAME_SIZE + 1];
    let mut given = [0_u8; HANDOVER_NAME_SIZE];
    let length = match connection::client().map(|client| client.hand_over(opened.handle, &mut given)) {
        Some(Answer::Done(length)) => length,
        Some(Answer::Failed(errno)) => return Err(Errno::from_raw_os_error(errno)),
        Some(Answer::Declined | Answer::Broken) | None => return Err(Errno::IO),
    };
    for (to, from) in name.iter_mut().zip(given.iter().take(length)) {
        *to = *from;
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::IO)?;
    kernel::open(root, name, (opened.flags & !DONE) | libc::O_CLOEXEC)
}
