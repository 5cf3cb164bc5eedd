//! Upgrades ring descriptors to kernel descriptors, for good.

use crate::kernel::{self, SignalsBlocked};
use crate::table::{self, Entry, Opened};
use crate::{connection, views};
use rustix::io::Errno;
use std::ffi::CStr;
use tameike_ring::client::{Answer, HANDOVER_NAME_SIZE};

/// Flags that took effect when the file was opened.
const DONE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_NOFOLLOW;

/// Upgrades `number`, if it is a ring file.
pub fn one(number: i32) -> Result<(), Errno> {
    let entry = table::entry(number).filter(|entry| !entry.is_free() && !connection::is_vfork_child());
    let Some(entry) = entry else { return Ok(()) };
    // A signal handler that interrupts this would wait for the upgrade, and deadlock.
    let blocked = SignalsBlocked::new();
    let Some(opened) = entry.begin_upgrade()? else { return Ok(()) };
    let outcome = hand_over(entry, number, opened);
    let last = outcome.ok().and_then(|()| entry.end_upgrade());
    drop(blocked);
    last.into_iter().for_each(connection::close_handle);
    outcome
}

/// Upgrades all ring files. A file that fails stays in the ring, and its next call reports the error.
pub fn all() {
    if connection::is_vfork_child() {
        return;
    }
    for number in table::numbers() {
        if table::entry(number).is_some_and(Entry::is_ring) {
            let _ = one(number);
        }
    }
}

/// Opens the same file in the kernel, and replaces the number. A failure changes nothing.
fn hand_over(entry: &Entry, number: i32, opened: Opened) -> Result<(), Errno> {
    let file = open_again(opened).inspect_err(|_| entry.fail_upgrade(None))?;
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
    let answer = connection::client().map(|client| client.hand_over(opened.handle, &mut given));
    let length = answer.and_then(Answer::served).ok_or(Errno::IO)??;
    name.iter_mut().zip(given.iter().take(length)).for_each(|(to, from)| *to = *from);
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::IO)?;
    kernel::open(root, name, (opened.flags & !DONE) | libc::O_CLOEXEC)
}
