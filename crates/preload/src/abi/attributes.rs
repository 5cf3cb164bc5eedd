//! `stat` and its variants, including the names that glibc had before 2.33.

use super::arguments::{Pointer, Text};
use super::{done, interpose, upgrade_first};
use crate::{connection, file, names, status, views};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use rustix::fs::{Stat, Statx};
use std::ffi::{c_int, c_uint};
use tameike_interpose::Verdict;
use tameike_interpose::attributes::{STAT_VERSION, statx_of};
use tameike_ring::client::Status;

type Out = Pointer<Stat>;

/// Fields that a request of `statx` may have for the ring to serve it. Programs commonly request birth times, which it does not return.
const SUPPORTED: c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// Flags that the ring supports in `fstatat` and `statx`, including those for the age of attributes.
const KNOWN_FLAGS: c_int = AT_EMPTY_PATH
    | AT_SYMLINK_NOFOLLOW
    | libc::AT_NO_AUTOMOUNT
    | libc::AT_STATX_FORCE_SYNC
    | libc::AT_STATX_DONT_SYNC;

/// Returns attributes of an open file or a path.
fn find(directory: c_int, path: Text, flags: c_int) -> Verdict<Stat> {
    if !connection::is_enabled() {
        return None;
    }
    let bytes = path.bytes().filter(|_| flags & !KNOWN_FLAGS == 0);
    let found = match bytes {
        Some(b"") if flags & AT_EMPTY_PATH != 0 => file::status(directory),
        Some(path) => names::status(directory, path, flags & AT_SYMLINK_NOFOLLOW == 0),
        None => None,
    };
    found.map(|found| found.map(in_view)).or_else(|| upgrade_first(&[&directory, &path]))
}

/// Converts attributes of a file of the view with this number.
fn in_view((status, view): (Status, usize)) -> Stat {
    status::stat(&status, views::by_number(view).map_or(0, views::View::device))
}

fn stat_file(number: c_int, out: Out) -> Verdict<c_int> {
    file::status(number).map(|found| done(found.and_then(|found| out.put(in_view(found)))))
}

fn stat_at(directory: c_int, path: Text, out: Out, flags: c_int) -> Verdict<c_int> {
    find(directory, path, flags).map(|found| done(found.and_then(|stat| out.put(stat))))
}

fn statx_at(directory: c_int, path: Text, flags: c_int, mask: c_uint, out: Pointer<Statx>) -> Verdict<c_int> {
    if mask & !SUPPORTED != 0 {
        return upgrade_first(&[&directory, &path]);
    }
    find(directory, path, flags).map(|found| done(found.and_then(|stat| out.put(statx_of(&stat)))))
}

/// Serves an older function if its version is that of today's `struct stat`.
fn current(version: c_int, with: impl FnOnce() -> Verdict<c_int>, directory: c_int) -> Verdict<c_int> {
    if version == STAT_VERSION { with() } else { upgrade_first(&[&directory]) }
}

interpose! {
    fn [stat, stat64](path: Text, out: Out) -> c_int = stat_at(AT_FDCWD, path, out, 0);
    fn [lstat, lstat64](path: Text, out: Out) -> c_int = stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
    fn [fstat, fstat64, __fstat64](number: c_int, out: Out) -> c_int = stat_file(number, out);
    fn [fstatat, fstatat64](directory: c_int, path: Text, out: Out, flags: c_int) -> c_int =
        stat_at(directory, path, out, flags);
    fn [__xstat, __xstat64](version: c_int, path: Text, out: Out) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, 0), AT_FDCWD);
    fn [__lxstat, __lxstat64](version: c_int, path: Text, out: Out) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW), AT_FDCWD);
    fn [__fxstat, __fxstat64](version: c_int, number: c_int, out: Out) -> c_int =
        current(version, || stat_file(number, out), number);
    fn [__fxstatat, __fxstatat64](version: c_int, directory: c_int, path: Text, out: Out, flags: c_int) -> c_int =
        current(version, || stat_at(directory, path, out, flags), directory);
    fn [statx](directory: c_int, path: Text, flags: c_int, mask: c_uint, out: Pointer<Statx>) -> c_int =
        statx_at(directory, path, flags, mask, out);
}
