//! Calls on descriptors that the ring serves: close, offset, flags, sync and size.

use super::{ErrorNumber, done, interpose, upgrade_first};
use crate::file;
use crate::table::{self, is_kernel};
use crate::{connection, kernel, session};
use rustix::io::Errno;
use std::ffi::{c_int, c_long, c_uint};
use tameike_interpose::Verdict;

/// `O_LARGEFILE`, which the kernel always returns from F_GETFL.
const LARGE_FILE: c_int = if cfg!(target_arch = "x86_64") { 0o100_000 } else { 0o400_000 };

/// Flags of `open` that `F_GETFL` does not return.
const OPEN_ONLY: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;

/// Flags that `F_SETFL` changes.
const SETTABLE: c_int = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;

fn fcntl_file(number: c_int, command: c_int, argument: c_long) -> Verdict<c_int> {
    if is_kernel(number) {
        return None;
    }
    match command {
        // The kernel keeps the flag with the number.
        libc::F_GETFD | libc::F_SETFD => None,
        libc::F_GETFL => file::flags(number).map(|flags| flags.map(|flags| flags & !OPEN_ONLY | LARGE_FILE)),
        libc::F_SETFL => match file::flags(number)? {
            Ok(flags) if (flags ^ argument as c_int) & SETTABLE == 0 => Some(Ok(0)),
            Ok(_) => upgrade_first(&[&number]),
            Err(error) => Some(Err(error)),
        },
        _ => upgrade_first(&[&number]),
    }
}

/// Terminal requests fail on regular files, which needs no upgrade.
fn ioctl_file(number: c_int, request: u64, argument: c_long) -> Verdict<c_int> {
    // The mounts support no reflinks, which `cp` attempts.
    if request == libc::FICLONE && !(is_kernel(number) && is_kernel(argument as c_int)) {
        return Some(Err(Errno::OPNOTSUPP));
    }
    if is_kernel(number) {
        return None;
    }
    // Programs make these requests on each file that they read or write.
    if [libc::TCGETS, libc::TIOCGWINSZ, libc::TIOCGPGRP].contains(&request) {
        return file::flags(number).map(|flags| flags.and(Err(Errno::NOTTY)));
    }
    upgrade_first(&[&number])
}

fn advise(number: c_int, length: i64, advice: c_int) -> Verdict<ErrorNumber> {
    let fits = length >= 0 && (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
    file::flags(number).map(|flags| flags.and(if fits { Ok(ErrorNumber(0)) } else { Err(Errno::INVAL) }))
}

/// `dup2`: upgrades both numbers. The kernel then closes the new one, or leaves it if the call fails.
fn replace(old: c_int, new: c_int) -> Verdict<c_int> {
    if table::entry(new).is_some_and(table::Entry::is_private) && kernel::is_open(old) {
        session::turn_off();
    }
    upgrade_first(&[&old, &new])
}

/// Closes the ring files of a range.
fn close_files(first: c_uint, last: c_uint) {
    for number in table::numbers() {
        let is_ring = table::entry(number).is_some_and(table::Entry::is_ring);
        if is_ring && (first..=last).contains(&number.cast_unsigned()) {
            let _: Verdict<()> = file::close(number);
        }
    }
}

/// `close_range` that skips the library's descriptors.
fn close_all(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let real = |first: c_uint, last: c_uint| tameike_interpose::call!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int);
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        session::turn_off();
    }
    let only_marks = flags & CLOSE_RANGE_CLOEXEC != 0;
    if !connection::is_enabled() || connection::is_vfork_child() || only_marks || first > last {
        return real(first, last);
    }
    close_files(first, last);
    let mut from = first;
    loop {
        let private = session::private_numbers().filter_map(|number| c_uint::try_from(number).ok());
        let Some(next) = private.filter(|number| (from..=last).contains(number)).min() else { break };
        if next > from && real(from, next - 1) != 0 {
            return -1;
        }
        from = next + 1;
    }
    if from <= last { real(from, last) } else { 0 }
}

const CLOSE_RANGE_UNSHARE: c_int = 1 << 1;
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

interpose! {
    fn [close, __close](number: c_int) -> c_int = file::close(number).map(done);
    fn [lseek, lseek64, __lseek, llseek](number: c_int, offset: i64, whence: c_int) -> i64 =
        if is_kernel(number) { None } else { file::seek(number, offset, whence) };
    fn [fsync, fdatasync](number: c_int) -> c_int = file::sync(number).map(done);
    fn [ftruncate, ftruncate64](number: c_int, size: i64) -> c_int = file::set_size(number, size).map(done);
    fn [fcntl, fcntl64, __fcntl, __libc_fcntl64](number: c_int, command: c_int, argument: c_long) -> c_int =
        fcntl_file(number, command, argument);
    fn [ioctl](number: c_int, request: u64, argument: c_long) -> c_int = ioctl_file(number, request, argument);
    fn [isatty](number: c_int) -> c_int =
        file::flags(number).map(|_| {
            tameike_interpose::set_errno(libc::ENOTTY);
            Ok(0)
        });
    fn [dup](number: c_int) -> c_int = upgrade_first(&[&number]);
    fn [dup2, __dup2](old: c_int, new: c_int) -> c_int = replace(old, new);
    fn [dup3](old: c_int, new: c_int, flags: c_int) -> c_int = replace(old, new);
    // Hints for the page cache, which do not apply to the agent's cache.
    fn [posix_fadvise, posix_fadvise64](number: c_int, offset: i64, length: i64, advice: c_int) -> ErrorNumber =
        advise(number, length, advice);
    fn [readahead](number: c_int, offset: i64, count: usize) -> isize = file::flags(number).map(|flags| flags.map(|_| 0));
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_all(first, last, flags)
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closefrom(first: c_int) {
    if connection::is_enabled() && !connection::is_vfork_child() {
        if close_all(first.max(0).cast_unsigned(), c_uint::MAX, 0) == 0 {
            return;
        }
        // On an old kernel, the C library closes all descriptors one by one, including this library's.
        session::turn_off();
    }
    tameike_interpose::call!(closefrom(first: c_int) -> ());
}
