//! Calls on paths, except those for attributes ([`super::attributes`]).

use super::{content, of, redirect};
use crate::{names, permissions, temporary};
use libc::AT_FDCWD;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use tameike_interpose::arguments::Text;
use tameike_interpose::{CREAT_FLAGS, Verdict, done, interpose};

type In = *const c_void;
type Out = *mut c_void;

fn open_at(directory: c_int, path: Text, flags: c_int, mode: c_uint) -> Verdict<c_int> {
    let makes = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    of(path, |path| names::open(directory, path, flags, if makes { mode & 0o7777 } else { 0 }))
}

fn remove_at(directory: c_int, path: Text, flags: c_int) -> Verdict<c_int> {
    of(path, |path| {
        crate::location::find(directory, path)?;
        if flags & !libc::AT_REMOVEDIR != 0 {
            return Some(Err(rustix::io::Errno::INVAL));
        }
        names::remove(directory, path, flags != 0).map(done)
    })
}

/// `remove`: unlinks a file, or removes a directory.
fn remove_any(path: Text) -> Verdict<c_int> {
    match remove_at(AT_FDCWD, path, 0)? {
        Err(rustix::io::Errno::ISDIR) => remove_at(AT_FDCWD, path, libc::AT_REMOVEDIR),
        removed => Some(removed),
    }
}

fn rename_at(from: (c_int, Text), to: (c_int, Text), flags: c_uint) -> Verdict<c_int> {
    of(from.1, |source| of(to.1, |target| names::rename((from.0, source), (to.0, target), flags).map(done)))
}

fn link_at(from: (c_int, Text), to: (c_int, Text), flags: c_int) -> Verdict<c_int> {
    of(from.1, |source| of(to.1, |target| names::link((from.0, source), (to.0, target), flags).map(done)))
}

fn read_link(directory: c_int, path: Text, buffer: *mut u8, size: usize) -> Verdict<isize> {
    let target = of(path, |path| names::read_link(directory, path))?;
    Some(target.map(|target| {
        let count = target.len().min(size);
        // SAFETY: the caller passed a buffer of `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), buffer, count) };
        count.cast_signed()
    }))
}

/// `mkostemps` and `mkdtemp`: `make` creates the file or directory.
fn temporary(template: *mut c_char, suffix: c_int, make: impl Fn(&[u8]) -> Verdict<c_int>) -> Verdict<c_int> {
    crate::spool::get()?;
    let length = super::bytes_at(template)?.len();
    // SAFETY: the caller passed a string of that length, which this call may change.
    let template = unsafe { std::slice::from_raw_parts_mut(template.cast::<u8>(), length) };
    crate::location::find(AT_FDCWD, template)?;
    let suffix = usize::try_from(suffix).unwrap_or(usize::MAX);
    let made = temporary::make(template, suffix, |name| make(name).unwrap_or(Err(rustix::io::Errno::NOENT)));
    Some(made)
}

fn temporary_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Verdict<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    temporary(template, suffix, |name| names::open(AT_FDCWD, name, flags, 0o600))
}

fn temporary_directory(template: *mut c_char) -> Verdict<*mut c_char> {
    let make = |name: &[u8]| names::make_directory(AT_FDCWD, name, 0o700).map(done);
    temporary(template, 0, make).map(|made| made.map(|_| template))
}

interpose! {
    fn [open, open64, __open, __open64](path: Text, flags: c_int, mode: c_uint) -> c_int =
        open_at(AT_FDCWD, path, flags, mode);
    fn [openat, openat64](directory: c_int, path: Text, flags: c_int, mode: c_uint) -> c_int =
        open_at(directory, path, flags, mode);
    fn [creat, creat64](path: Text, mode: c_uint) -> c_int = open_at(AT_FDCWD, path, CREAT_FLAGS, mode);
    fn [__open_2, __open64_2](path: Text, flags: c_int) -> c_int = open_at(AT_FDCWD, path, flags, 0);
    fn [__openat_2, __openat64_2](directory: c_int, path: Text, flags: c_int) -> c_int =
        open_at(directory, path, flags, 0);
    fn [unlink](path: Text) -> c_int = remove_at(AT_FDCWD, path, 0);
    fn [unlinkat](directory: c_int, path: Text, flags: c_int) -> c_int = remove_at(directory, path, flags);
    fn [rmdir](path: Text) -> c_int = remove_at(AT_FDCWD, path, libc::AT_REMOVEDIR);
    fn [remove](path: Text) -> c_int = remove_any(path);
    fn [mkdir](path: Text, mode: c_uint) -> c_int =
        of(path, |path| names::make_directory(AT_FDCWD, path, mode).map(done));
    fn [mkdirat](directory: c_int, path: Text, mode: c_uint) -> c_int =
        of(path, |path| names::make_directory(directory, path, mode).map(done));
    fn [rename](from: Text, to: Text) -> c_int = rename_at((AT_FDCWD, from), (AT_FDCWD, to), 0);
    fn [renameat](from: c_int, source: Text, to: c_int, target: Text) -> c_int =
        rename_at((from, source), (to, target), 0);
    fn [renameat2](from: c_int, source: Text, to: c_int, target: Text, flags: c_uint) -> c_int =
        rename_at((from, source), (to, target), flags);
    fn [link](from: Text, to: Text) -> c_int = link_at((AT_FDCWD, from), (AT_FDCWD, to), 0);
    fn [linkat](from: c_int, source: Text, to: c_int, target: Text, flags: c_int) -> c_int =
        link_at((from, source), (to, target), flags);
    fn [symlink](target: Text, path: Text) -> c_int =
        of(path, |path| names::make_link(target.bytes()?, AT_FDCWD, path).map(done));
    fn [symlinkat](target: Text, directory: c_int, path: Text) -> c_int =
        of(path, |path| names::make_link(target.bytes()?, directory, path).map(done));
    fn [readlink](path: Text, buffer: *mut u8, size: usize) -> isize = read_link(AT_FDCWD, path, buffer, size);
    fn [readlinkat](directory: c_int, path: Text, buffer: *mut u8, size: usize) -> isize =
        read_link(directory, path, buffer, size);
    fn [__readlink_chk](path: Text, buffer: *mut u8, size: usize, all: usize) -> isize =
        if size <= all { read_link(AT_FDCWD, path, buffer, size) } else { None };
    fn [__readlinkat_chk](directory: c_int, path: Text, buffer: *mut u8, size: usize, all: usize) -> isize =
        if size <= all { read_link(directory, path, buffer, size) } else { None };
    fn [access](path: Text, wanted: c_int) -> c_int =
        of(path, |path| permissions::access(AT_FDCWD, path, wanted, 0).map(done));
    fn [euidaccess, eaccess](path: Text, wanted: c_int) -> c_int =
        of(path, |path| permissions::access(AT_FDCWD, path, wanted, libc::AT_EACCESS).map(done));
    fn [faccessat](directory: c_int, path: Text, wanted: c_int, flags: c_int) -> c_int =
        of(path, |path| permissions::access(directory, path, wanted, flags).map(done));
    fn [truncate, truncate64](path: Text, size: i64) -> c_int = of(path, |path| names::truncate(path, size).map(done));
    fn [mkstemp, mkstemp64](template: *mut c_char) -> c_int = temporary_file(template, 0, 0);
    fn [mkstemps, mkstemps64](template: *mut c_char, suffix: c_int) -> c_int = temporary_file(template, suffix, 0);
    fn [mkostemp, mkostemp64](template: *mut c_char, flags: c_int) -> c_int = temporary_file(template, 0, flags);
    fn [mkostemps, mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int =
        temporary_file(template, suffix, flags);
    fn [mkdtemp](template: *mut c_char) -> *mut c_char = temporary_directory(template);
}

redirect! {
    fn [getxattr](path: Text, name: In, value: Out, size: usize) -> isize, [path] = content(AT_FDCWD, path, true);
    fn [lgetxattr](path: Text, name: In, value: Out, size: usize) -> isize, [path] = content(AT_FDCWD, path, false);
    fn [setxattr](path: Text, name: In, value: In, size: usize, flags: c_int) -> c_int, [path] = content(AT_FDCWD, path, true);
    fn [lsetxattr](path: Text, name: In, value: In, size: usize, flags: c_int) -> c_int, [path] = content(AT_FDCWD, path, false);
    fn [listxattr](path: Text, list: Out, size: usize) -> isize, [path] = content(AT_FDCWD, path, true);
    fn [llistxattr](path: Text, list: Out, size: usize) -> isize, [path] = content(AT_FDCWD, path, false);
    fn [removexattr](path: Text, name: In) -> c_int, [path] = content(AT_FDCWD, path, true);
    fn [lremovexattr](path: Text, name: In) -> c_int, [path] = content(AT_FDCWD, path, false);
    fn [pathconf](path: Text, name: c_int) -> c_long, [path] = content(AT_FDCWD, path, true);
    fn [statfs, statfs64](path: Text, out: Out) -> c_int, [path] = content(AT_FDCWD, path, true);
    fn [statvfs, statvfs64](path: Text, out: Out) -> c_int, [path] = content(AT_FDCWD, path, true);
    fn [mkfifo](path: Text, mode: c_uint) -> c_int, [path] = of(path, |path| names::new_name(AT_FDCWD, path));
    fn [mkfifoat](directory: c_int, path: Text, mode: c_uint) -> c_int, [path] = of(path, |path| names::new_name(directory, path));
    fn [mknod](path: Text, mode: c_uint, device: u64) -> c_int, [path] = of(path, |path| names::new_name(AT_FDCWD, path));
    fn [mknodat](directory: c_int, path: Text, mode: c_uint, device: u64) -> c_int, [path] = of(path, |path| names::new_name(directory, path));
}
