//! Calls on paths that are on a view.

use crate::place::{self, Place};
use crate::table::{self, Opened};
use crate::{connection, kernel, session, upgrade, views};
use rustix::io::Errno;
use tameike_interpose::Verdict;
use tameike_ring::client::{Answer, Status};

/// Flags of `open` that only the kernel can do, or that say that no regular file is meant.
const KERNEL_FLAGS: i32 = libc::O_PATH
    | libc::O_TMPFILE
    | libc::O_DIRECTORY
    | libc::O_DIRECT
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC;

/// Those of who changes something.
const CHANGES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

/// What a file's permissions need for the kernel to be able to take it over.
const OWNER_READS_AND_WRITES: u32 = 0o600;

fn verdict<T>(answer: Answer<T>) -> Verdict<T> {
    match answer {
        Answer::Done(done) => Some(Ok(done)),
        Answer::Failed(errno) => Some(Err(Errno::from_raw_os_error(errno))),
        Answer::Declined => None,
        Answer::Broken => Some(Err(Errno::IO)),
    }
}

/// `openat`; `mode` counts when the flags say that a file may be made.
pub fn open(directory: i32, path: &[u8], flags: i32, mode: u32) -> Verdict<i32> {
    if flags & KERNEL_FLAGS != 0 {
        return None;
    }
    let find = if flags & CHANGES == 0 { place::find } else { place::find_to_change };
    let place = find(directory, path)?;
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode & 0o7777 & !session::umask()? };
    if flags & libc::O_CREAT != 0 && mode & OWNER_READS_AND_WRITES != OWNER_READS_AND_WRITES {
        return None;
    }
    let root = views::by_number(place.view)?.root().ok()?;
    // Before the file is made: no number, no file.
    let number = match kernel::duplicate(root, flags & libc::O_CLOEXEC != 0) {
        Ok(number) => number,
        Err(error) => return Some(Err(error)),
    };
    let outcome = open_as(number, &place, flags, mode);
    if !matches!(outcome, Some(Ok(_))) {
        kernel::close(number);
    }
    outcome
}

fn open_as(number: i32, place: &Place<'_>, flags: i32, mode: u32) -> Verdict<i32> {
    // The C library's standard streams have the lowest numbers, and read and write past this library.
    let entry = table::entry(number).filter(|entry| entry.is_free() && number > libc::STDERR_FILENO)?;
    let answer = connection::client()?.open(place.start, place.path, flags, mode);
    let opened = match verdict(answer)? {
        Ok(opened) => opened,
        Err(error) => return Some(Err(error)),
    };
    let (handle, key) = (opened.handle, opened.key);
    entry.install(number, Opened { handle, key, flags, view: place.view });
    if !connection::admits() {
        // Turned off meanwhile, by who has perhaps not seen this file. A failure is told by the next call on it.
        let _ = upgrade::one(number);
    }
    Some(Ok(number))
}

/// `fstatat`; the attributes, and the library's number of the view.
pub fn status(directory: i32, path: &[u8], follow: bool) -> Verdict<(Status, usize)> {
    let place = place::find(directory, path)?;
    let answer = connection::client()?.status_at(place.start, place.path, follow);
    verdict(answer.map(|status| (status, place.view)))
}

/// `faccessat`: whether something is there, and may be read or written to as its owner may. Where that does not say yes, and of
/// what may be run, the kernel knows: it has groups, capabilities and how the view is mounted.
pub fn access(directory: i32, path: &[u8], wanted: i32) -> Verdict<()> {
    let (user, find) =
        (session::user()?, if wanted & libc::W_OK == 0 { place::find } else { place::find_to_change });
    if wanted & !(libc::R_OK | libc::W_OK) != 0 {
        return None;
    }
    let place = find(directory, path)?;
    let found = match verdict(connection::client()?.status_at(place.start, place.path, true))? {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    let bits = wanted.cast_unsigned() << 6;
    let may = wanted == libc::F_OK || (found.uid == user && found.mode & bits == bits);
    may.then_some(Ok(()))
}

/// `unlinkat`, of what is not a directory.
pub fn unlink(directory: i32, path: &[u8]) -> Verdict<()> {
    let place = place::find_to_change(directory, path)?;
    verdict(connection::client()?.unlink(place.start, place.path))
}

/// `mkdirat`.
pub fn make_directory(directory: i32, path: &[u8], mode: u32) -> Verdict<()> {
    let place = place::find_to_change(directory, path)?;
    let mode = mode & 0o7777 & !session::umask()?;
    verdict(connection::client()?.make_dir(place.start, place.path, mode))
}

/// `renameat2`.
pub fn rename(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Verdict<()> {
    let from = place::find_to_change(from.0, from.1)?;
    let to = place::find(to.0, to.1).filter(|to| to.view == from.view)?;
    verdict(connection::client()?.rename((from.start, from.path), (to.start, to.path), flags))
}
