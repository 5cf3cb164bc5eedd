//! Calls on paths in a view.

use crate::table::{self, Opened};
use crate::view_path::{self, ViewPath};
use crate::{connection, kernel, session, upgrade, views};
use tameike_interpose::Verdict;
use tameike_ring::client::{CHANGING_FLAGS, OpenFile, Status};

/// Flags of `open` that only the kernel supports, or that do not name a regular file.
const KERNEL_FLAGS: i32 = libc::O_PATH
    | libc::O_TMPFILE
    | libc::O_DIRECTORY
    | libc::O_DIRECT
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC;

/// Permissions without which a descriptor of the file could not be upgraded.
const OWNER_READS_AND_WRITES: u32 = 0o600;

/// `openat`; `mode` applies with O_CREAT.
pub fn open(directory: i32, path: &[u8], flags: i32, mode: u32) -> Verdict<i32> {
    if flags & KERNEL_FLAGS != 0 {
        return None;
    }
    let find = if flags & CHANGING_FLAGS == 0 { view_path::find } else { view_path::find_to_change };
    let target = find(directory, path)?;
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode & 0o7777 & !session::umask()? };
    if flags & libc::O_CREAT != 0 && mode & OWNER_READS_AND_WRITES != OWNER_READS_AND_WRITES {
        return None;
    }
    let root = views::by_number(target.view)?.root().ok()?;
    // Before the file is created: without a free number, the call must not create it.
    let number = match kernel::duplicate(root, flags & libc::O_CLOEXEC != 0) {
        Ok(number) => number,
        Err(error) => return Some(Err(error)),
    };
    let outcome = open_as(number, &target, flags, mode);
    if !matches!(outcome, Some(Ok(_))) {
        kernel::close(number);
    }
    outcome
}

fn open_as(number: i32, target: &ViewPath<'_>, flags: i32, mode: u32) -> Verdict<i32> {
    // The lowest numbers belong to standard streams, whose I/O in the C library bypasses this library.
    let entry = table::entry(number).filter(|entry| entry.is_free() && number > libc::STDERR_FILENO)?;
    let answer = connection::client()?.open(target.start, target.path, flags, mode);
    Some(answer.served()?.map(|OpenFile { handle, key, .. }| {
        entry.install(number, Opened { handle, key, flags, view: target.view });
        if !connection::is_on() {
            // A thread has turned the ring off since, perhaps before it could see this file. The next call on it reports a failure.
            let _ = upgrade::one(number);
        }
        number
    }))
}

/// `fstatat`: returns the attributes and the view's number.
pub fn status(directory: i32, path: &[u8], follow: bool) -> Verdict<(Status, usize)> {
    let target = view_path::find(directory, path)?;
    let answer = connection::client()?.status_at(target.start, target.path, follow);
    answer.map(|status| (status, target.view)).served()
}

/// `faccessat`: answers for existence, and for reads and writes that the owner's bits permit. The kernel answers all other cases, as it
/// knows groups, capabilities and mount options.
pub fn access(directory: i32, path: &[u8], wanted: i32) -> Verdict<()> {
    let (user, find) = (
        session::user()?,
        if wanted & libc::W_OK == 0 { view_path::find } else { view_path::find_to_change },
    );
    if wanted & !(libc::R_OK | libc::W_OK) != 0 {
        return None;
    }
    let target = find(directory, path)?;
    let bits = wanted.cast_unsigned() << 6;
    match connection::client()?.status_at(target.start, target.path, true).served()? {
        Ok(found) if wanted != libc::F_OK && (found.uid != user || found.mode & bits != bits) => None,
        found => Some(found.map(drop)),
    }
}

/// `unlinkat` without AT_REMOVEDIR.
pub fn unlink(directory: i32, path: &[u8]) -> Verdict<()> {
    let target = view_path::find_to_change(directory, path)?;
    connection::client()?.unlink(target.start, target.path).served()
}

/// `mkdirat` in a view.
pub fn make_directory(directory: i32, path: &[u8], mode: u32) -> Verdict<()> {
    let target = view_path::find_to_change(directory, path)?;
    let mode = mode & 0o7777 & !session::umask()?;
    connection::client()?.make_dir(target.start, target.path, mode).served()
}

/// `renameat2` within a view.
pub fn rename(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Verdict<()> {
    let from = view_path::find_to_change(from.0, from.1)?;
    let to = view_path::find(to.0, to.1).filter(|to| to.view == from.view)?;
    connection::client()?.rename((from.start, from.path), (to.start, to.path), flags).served()
}
