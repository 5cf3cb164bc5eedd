//! `stat` and its variants, including the names that glibc had before 2.33, and changes of attributes by path.

use super::of;
use crate::{attributes, names, permissions};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, Statx, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::{CString, c_int, c_uint};
use tameike_core::Timestamp;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_interpose::arguments::{Pointer, Text};
use tameike_interpose::attributes::{STAT_VERSION, statx_of};
use tameike_interpose::{Verdict, done, interpose};

type Out = Pointer<Stat>;

fn follow(flags: c_int) -> bool {
    flags & AT_SYMLINK_NOFOLLOW == 0
}

fn find(directory: c_int, path: Text, flags: c_int) -> Verdict<Stat> {
    of(path, |path| match path {
        b"" if flags & AT_EMPTY_PATH != 0 => attributes::of_open(directory),
        path => attributes::of_path(directory, path, follow(flags)),
    })
}

fn stat_at(directory: c_int, path: Text, out: Out, flags: c_int) -> Verdict<c_int> {
    find(directory, path, flags).map(|found| done(found.and_then(|stat| out.put(stat))))
}

fn stat_open(number: c_int, out: Out) -> Verdict<c_int> {
    attributes::of_open(number).map(|found| done(found.and_then(|stat| out.put(stat))))
}

fn statx_at(directory: c_int, path: Text, flags: c_int, out: Pointer<Statx>) -> Verdict<c_int> {
    find(directory, path, flags).map(|found| done(found.and_then(|stat| out.put(statx_of(&stat)))))
}

/// Serves an older function if its version is that of today's `struct stat`.
fn current(version: c_int, with: impl FnOnce() -> Verdict<c_int>) -> Verdict<c_int> {
    if version == STAT_VERSION { with() } else { None }
}

fn change_mode(directory: c_int, path: Text, mode: c_uint, flags: c_int) -> Verdict<c_int> {
    let bits = Mode::from_raw_mode(mode);
    let change = AttrChange { mode: Some((mode & 0o7777) as u16), ..AttrChange::default() };
    let of_directory = |path: &CString| rustix::fs::chmodat(CWD, path, bits, AtFlags::empty());
    of(path, |path| permissions::change(directory, path, follow(flags), change, of_directory).map(done))
}

fn change_owner(directory: c_int, path: Text, user: c_uint, group: c_uint, flags: c_int) -> Verdict<c_int> {
    if flags & AT_EMPTY_PATH != 0 && path.bytes() == Some(b"") {
        return None;
    }
    let given = |id: c_uint| Some(id).filter(|id| *id != c_uint::MAX);
    let change = AttrChange { uid: given(user), gid: given(group), ..AttrChange::default() };
    let (user, group) = (given(user).map(Uid::from_raw), given(group).map(Gid::from_raw));
    let of_directory =
        |path: &CString| rustix::fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW);
    of(path, |path| permissions::change(directory, path, follow(flags), change, of_directory).map(done))
}

/// Changes times in the form of `utimensat`.
fn change_times(directory: c_int, path: Text, times: [libc::timespec; 2], flags: c_int) -> Verdict<c_int> {
    let set = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_OMIT => None,
        libc::UTIME_NOW => Some(SetTime::Now),
        nanoseconds => Some(SetTime::To(Timestamp { seconds: time.tv_sec, nanoseconds: nanoseconds as u32 })),
    };
    let [access, change] = times.each_ref();
    let changes = AttrChange { atime: set(access), mtime: set(change), ..AttrChange::default() };
    let kernels = |time: &libc::timespec| Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec };
    let both = Timestamps { last_access: kernels(access), last_modification: kernels(change) };
    let of_directory = |path: &CString| rustix::fs::utimensat(CWD, path, &both, AtFlags::SYMLINK_NOFOLLOW);
    of(path, |path| permissions::change(directory, path, follow(flags), changes, of_directory).map(done))
}

const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };

fn exact(path: Text, directory: c_int, times: Pointer<[libc::timespec; 2]>, flags: c_int) -> Verdict<c_int> {
    let times = times.get().unwrap_or([NOW; 2]);
    if times.iter().any(|time| !matches!(time.tv_nsec, 0..1_000_000_000 | libc::UTIME_NOW | libc::UTIME_OMIT))
    {
        return None;
    }
    change_times(directory, path, times, flags)
}

fn by_microseconds(
    directory: c_int,
    path: Text,
    times: Pointer<[libc::timeval; 2]>,
    flags: c_int,
) -> Verdict<c_int> {
    let of = |time: libc::timeval| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 };
    match times.get() {
        Some(times) if times.iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) => {
            Some(Err(Errno::INVAL))
        }
        times => change_times(directory, path, times.map_or([NOW; 2], |times| times.map(of)), flags),
    }
}

fn by_seconds(path: Text, times: Pointer<libc::utimbuf>) -> Verdict<c_int> {
    let of = |seconds| libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = times.get().map_or([NOW; 2], |times| [of(times.actime), of(times.modtime)]);
    change_times(AT_FDCWD, path, times, 0)
}

interpose! {
    fn [stat, stat64](path: Text, out: Out) -> c_int = stat_at(AT_FDCWD, path, out, 0);
    fn [lstat, lstat64](path: Text, out: Out) -> c_int = stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
    fn [fstat, fstat64, __fstat64](number: c_int, out: Out) -> c_int = stat_open(number, out);
    fn [fstatat, fstatat64](directory: c_int, path: Text, out: Out, flags: c_int) -> c_int =
        stat_at(directory, path, out, flags);
    fn [__xstat, __xstat64](version: c_int, path: Text, out: Out) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, 0));
    fn [__lxstat, __lxstat64](version: c_int, path: Text, out: Out) -> c_int =
        current(version, || stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW));
    fn [__fxstat, __fxstat64](version: c_int, number: c_int, out: Out) -> c_int =
        current(version, || stat_open(number, out));
    fn [__fxstatat, __fxstatat64](version: c_int, directory: c_int, path: Text, out: Out, flags: c_int) -> c_int =
        current(version, || stat_at(directory, path, out, flags));
    fn [statx](directory: c_int, path: Text, flags: c_int, mask: c_uint, out: Pointer<Statx>) -> c_int =
        statx_at(directory, path, flags, out);
    fn [chmod](path: Text, mode: c_uint) -> c_int = change_mode(AT_FDCWD, path, mode, 0);
    fn [lchmod](path: Text, mode: c_uint) -> c_int = change_mode(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
    fn [fchmodat](directory: c_int, path: Text, mode: c_uint, flags: c_int) -> c_int =
        change_mode(directory, path, mode, flags);
    fn [chown](path: Text, user: c_uint, group: c_uint) -> c_int = change_owner(AT_FDCWD, path, user, group, 0);
    fn [lchown](path: Text, user: c_uint, group: c_uint) -> c_int =
        change_owner(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
    fn [fchownat](directory: c_int, path: Text, user: c_uint, group: c_uint, flags: c_int) -> c_int =
        change_owner(directory, path, user, group, flags);
    fn [utimensat](directory: c_int, path: Text, times: Pointer<[libc::timespec; 2]>, flags: c_int) -> c_int =
        exact(path, directory, times, flags);
    fn [utimes](path: Text, times: Pointer<[libc::timeval; 2]>) -> c_int = by_microseconds(AT_FDCWD, path, times, 0);
    fn [lutimes](path: Text, times: Pointer<[libc::timeval; 2]>) -> c_int =
        by_microseconds(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
    fn [futimesat](directory: c_int, path: Text, times: Pointer<[libc::timeval; 2]>) -> c_int =
        by_microseconds(directory, path, times, 0);
    fn [utime](path: Text, times: Pointer<libc::utimbuf>) -> c_int = by_seconds(path, times);
    fn [fsync, fdatasync](number: c_int) -> c_int = names::sync(number).map(done);
    fn [syncfs](number: c_int) -> c_int = names::sync(number).map(done);
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sync() {
    // `sync` cannot report a failure.
    let _ = tameike_interpose::guarded(names::sync_all);
    tameike_interpose::call!(sync() -> ());
}
