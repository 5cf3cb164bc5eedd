//! `stat` and its variants, including the names that glibc had before 2.33.

use super::arguments::{Pointer, Text};
use super::names::done;
use super::{interpose, upgrade_first};
use crate::file;
use crate::{connection, names, status, table, views};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use rustix::io::Errno;
use std::ffi::{c_int, c_uint};
use tameike_interpose::Verdict;
use tameike_ring::client::Status;

type Stat = Pointer<libc::stat>;

/// Version of `struct stat` in the first argument of the older functions.
#[cfg(target_arch = "x86_64")]
const STAT_VERSION: c_int = 1;
#[cfg(not(target_arch = "x86_64"))]
const STAT_VERSION: c_int = 0;

/// Flags that the ring supports in `fstatat` and `statx`, including those for the age of attributes.
const KNOWN_FLAGS: c_int = AT_EMPTY_PATH
    | AT_SYMLINK_NOFOLLOW
    | libc::AT_NO_AUTOMOUNT
    | libc::AT_STATX_FORCE_SYNC
    | libc::AT_STATX_DONT_SYNC;

/// Returns attributes of an open file or a path.
fn find(directory: c_int, path: Text, flags: c_int) -> Verdict<(Status, usize)> {
    if !connection::is_enabled() {
        return None;
    }
    let bytes = path.bytes().filter(|_| flags & !KNOWN_FLAGS == 0);
    let found = match bytes {
        Some(b"") if flags & AT_EMPTY_PATH != 0 => file::status(directory),
        Some(path) => names::status(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0),
        None => None,
    };
    found.or_else(|| upgrade_first(&[&directory, &path]))
}

fn put(found: Result<(Status, usize), Errno>, out: Stat) -> Result<(), Errno> {
    let (found, view) = found?;
    out.put(status::stat(&found, device(view)))
}

fn device(view: usize) -> u64 {
    views::by_number(view).map_or(0, views::View::device)
}

fn stat_file(number: c_int, out: Stat) -> Verdict<c_int> {
    if table::entry(number).is_none_or(table::Entry::is_free) {
        return None;
    }
    file::status(number).map(|found| done(put(found, out)))
}

fn stat_at(directory: c_int, path: Text, out: Stat, flags: c_int) -> Verdict<c_int> {
    find(directory, path, flags).map(|found| done(put(found, out)))
}

fn statx_at(
    directory: c_int,
    path: Text,
    flags: c_int,
    mask: c_uint,
    out: Pointer<libc::statx>,
) -> Verdict<c_int> {
    if mask & !status::SUPPORTED != 0 {
        return upgrade_first(&[&directory, &path]);
    }
    let found = find(directory, path, flags)?;
    Some(done(found.and_then(|(found, view)| out.put(status::statx(&found, device(view))))))
}

/// Serves an older function if its version is that of today's `struct stat`.
fn current(version: c_int, with: impl FnOnce() -> Verdict<c_int>, directory: c_int) -> Verdict<c_int> {
    if version == STAT_VERSION { with() } else { upgrade_first(&[&directory]) }
}

interpose! {
    fn [stat, stat64](path: Text, out: Stat) -> c_int = stat_at(AT_FDCWD, path, out, 0);
    fn [lstat, lstat64](path: Text, out: Stat) -> c_int = stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
    fn [fstat, fstat64, __fstat64](number: c_int, out: Stat) -> c_int = stat_file(number, out);
    fn [fstatat, fstatat64](directory: c_int, path: Text, out: Stat, flags: c_int) -> c_int =
        stat_at(directory, path, out, flags);
    fn [__xstat, __xstat64](version: c_int, path: Text, out: Stat) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, 0), AT_FDCWD);
    fn [__lxstat, __lxstat64](version: c_int, path: Text, out: Stat) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW), AT_FDCWD);
    fn [__fxstat, __fxstat64](version: c_int, number: c_int, out: Stat) -> c_int =
        current(version, || stat_file(number, out), number);
    fn [__fxstatat, __fxstatat64](version: c_int, directory: c_int, path: Text, out: Stat, flags: c_int) -> c_int =
        current(version, || stat_at(directory, path, out, flags), directory);
    fn [statx](directory: c_int, path: Text, flags: c_int, mask: c_uint, out: Pointer<libc::statx>) -> c_int =
        statx_at(directory, path, flags, mask, out);
}
