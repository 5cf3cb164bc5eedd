//! Calls on paths, except those for attributes ([`super::attributes`]).

use super::arguments::Text;
use super::{done, interpose, upgrade_first};
use crate::names;
use libc::AT_FDCWD;
use std::ffi::{c_int, c_uint};
use tameike_interpose::{CREAT_FLAGS, Verdict};

/// Serves a path through the ring or, after upgrading descriptors that the arguments name, through the kernel.
fn at<T>(directory: c_int, path: Text, ring: impl FnOnce(&[u8]) -> Verdict<T>) -> Verdict<T> {
    if !crate::connection::is_enabled() {
        return None;
    }
    path.bytes().and_then(ring).or_else(|| upgrade_first(&[&directory, &path]))
}

fn open_at(directory: c_int, path: Text, flags: c_int, mode: c_uint) -> Verdict<c_int> {
    at(directory, path, |path| names::open(directory, path, flags, mode))
}

fn unlink_at(directory: c_int, path: Text, flags: c_int) -> Verdict<c_int> {
    at(directory, path, |path| if flags == 0 { names::unlink(directory, path).map(done) } else { None })
}

fn make_at(directory: c_int, path: Text, mode: c_uint) -> Verdict<c_int> {
    at(directory, path, |path| names::make_directory(directory, path, mode).map(done))
}

fn rename_at(from: (c_int, Text), to: (c_int, Text), flags: c_uint) -> Verdict<c_int> {
    at(from.0, from.1, |source| {
        at(to.0, to.1, |target| names::rename((from.0, source), (to.0, target), flags).map(done))
    })
}

/// AT_EACCESS makes no difference: if real and effective user differ, the kernel serves the call.
fn access_at(directory: c_int, path: Text, wanted: c_int, flags: c_int) -> Verdict<c_int> {
    at(directory, path, |path| {
        if flags & !libc::AT_EACCESS == 0 { names::access(directory, path, wanted).map(done) } else { None }
    })
}

interpose! {
    fn [open, open64, __open, __open64](path: Text, flags: c_int, mode: c_uint) -> c_int =
        open_at(AT_FDCWD, path, flags, mode);
    fn [openat, openat64](directory: c_int, path: Text, flags: c_int, mode: c_uint) -> c_int =
        open_at(directory, path, flags, mode);
    fn [creat, creat64](path: Text, mode: c_uint) -> c_int = open_at(AT_FDCWD, path, CREAT_FLAGS, mode);
    fn [__open_2, __open64_2](path: Text, flags: c_int) -> c_int = without_mode(AT_FDCWD, path, flags);
    fn [__openat_2, __openat64_2](directory: c_int, path: Text, flags: c_int) -> c_int =
        without_mode(directory, path, flags);
    fn [access](path: Text, wanted: c_int) -> c_int = access_at(AT_FDCWD, path, wanted, 0);
    fn [euidaccess, eaccess](path: Text, wanted: c_int) -> c_int = access_at(AT_FDCWD, path, wanted, libc::AT_EACCESS);
    fn [faccessat](directory: c_int, path: Text, wanted: c_int, flags: c_int) -> c_int =
        access_at(directory, path, wanted, flags);
    fn [unlink](path: Text) -> c_int = unlink_at(AT_FDCWD, path, 0);
    fn [unlinkat](directory: c_int, path: Text, flags: c_int) -> c_int = unlink_at(directory, path, flags);
    fn [mkdir](path: Text, mode: c_uint) -> c_int = make_at(AT_FDCWD, path, mode);
    fn [mkdirat](directory: c_int, path: Text, mode: c_uint) -> c_int = make_at(directory, path, mode);
    fn [rename](from: Text, to: Text) -> c_int = rename_at((AT_FDCWD, from), (AT_FDCWD, to), 0);
    fn [renameat](from: c_int, source: Text, to: c_int, target: Text) -> c_int =
        rename_at((from, source), (to, target), 0);
    fn [renameat2](from: c_int, source: Text, to: c_int, target: Text, flags: c_uint) -> c_int =
        rename_at((from, source), (to, target), flags);
}

/// Fortified calls without a mode must not create a file: the C library aborts the program.
fn without_mode(directory: c_int, path: Text, flags: c_int) -> Verdict<c_int> {
    let creates = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    if creates { None } else { open_at(directory, path, flags, 0) }
}
