//! `syscall`: system calls by number.
//!
//! The most common calls that the ring serves use its functions. For any other call, arguments that may be ring descriptors are
//! upgraded. Structures in memory (`openat2`, submission queues) are not inspected.

use super::arguments::{Buffer, Bytes, Pointer, Text};
use super::{Upgrade, attributes, descriptors, directory, names, process, transfer};
use crate::{connection, session};
use std::ffi::{c_int, c_long, c_uint, c_void};

const NO_DESCRIPTORS: [c_long; 4] =
    [libc::SYS_futex, libc::SYS_gettid, libc::SYS_getrandom, libc::SYS_membarrier];

/// Calls that change the meaning of paths and descriptors, or the caller's credentials.
const ENDS: [c_long; 27] = [
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_umount2,
    libc::SYS_seccomp,
    libc::SYS_landlock_restrict_self,
    libc::SYS_prctl,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_exit_group,
    libc::SYS_exit,
    libc::SYS_mount_setattr,
];

/// Calls that create a child, or execute another program.
const CHILDREN: [c_long; 4] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_execve, libc::SYS_execveat];

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
fn is_older_child(number: c_long) -> bool {
    [libc::SYS_fork, libc::SYS_vfork].contains(&number)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_older_child(_: c_long) -> bool {
    false
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if connection::is_enabled()
        && let Some(outcome) = known(number, [a, b, c, d])
    {
        return outcome;
    }
    let failed =
        super::guarded(|| if connection::is_enabled() { before(number, &[a, b, c, d, e, f]) } else { None });
    match failed {
        Some(failed) => super::deliver(failed),
        None => tameike_interpose::call!(syscall(
            number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
        ) -> c_long),
    }
}

/// Serves calls for which the library has a function.
fn known(number: c_long, [a, b, c, d]: [c_long; 4]) -> Option<c_long> {
    let (first, pointer) = (a as c_int, b as *mut c_void);
    let outcome = match number {
        libc::SYS_read => transfer::read(first, Buffer::at(pointer), c as usize) as c_long,
        libc::SYS_write => transfer::write(first, Bytes::at(pointer), c as usize) as c_long,
        libc::SYS_pread64 => transfer::pread64(first, Buffer::at(pointer), c as usize, d) as c_long,
        libc::SYS_pwrite64 => transfer::pwrite64(first, Bytes::at(pointer), c as usize, d) as c_long,
        libc::SYS_openat => names::openat(first, Text::at(pointer), c as c_int, d as c_uint).into(),
        libc::SYS_faccessat => names::faccessat(first, Text::at(pointer), c as c_int, 0).into(),
        libc::SYS_faccessat2 => names::faccessat(first, Text::at(pointer), c as c_int, d as c_int).into(),
        libc::SYS_close => descriptors::close(first).into(),
        libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
        libc::SYS_lseek => descriptors::lseek(first, b, c as c_int),
        libc::SYS_dup3 => descriptors::dup3(first, b as c_int, c as c_int).into(),
        libc::SYS_fcntl => descriptors::fcntl(first, b as c_int, c).into(),
        libc::SYS_fstat => attributes::fstat(first, Pointer::at(pointer)).into(),
        libc::SYS_newfstatat => {
            attributes::fstatat(first, Text::at(pointer), Pointer::at(c as *mut c_void), d as c_int).into()
        }
        libc::SYS_chdir => directory::chdir(Text::at(a as *mut c_void)).into(),
        libc::SYS_fchdir => directory::fchdir(first).into(),
        libc::SYS_umask => process::umask(a as c_uint).into(),
        _ => return older(number, [a, b, c]),
    };
    Some(outcome)
}

#[cfg(target_arch = "x86_64")]
fn older(number: c_long, [a, b, c]: [c_long; 3]) -> Option<c_long> {
    match number {
        libc::SYS_open => Some(names::open(Text::at(a as *mut c_void), b as c_int, c as c_uint).into()),
        libc::SYS_access => Some(names::access(Text::at(a as *mut c_void), b as c_int).into()),
        libc::SYS_dup2 => Some(descriptors::dup2(a as c_int, b as c_int).into()),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: c_long, _: [c_long; 3]) -> Option<c_long> {
    None
}

fn before(number: c_long, arguments: &[c_long]) -> tameike_interpose::Verdict<c_long> {
    if NO_DESCRIPTORS.contains(&number) {
        return None;
    }
    if ENDS.contains(&number) {
        session::turn_off();
        return None;
    }
    if CHILDREN.contains(&number) || is_older_child(number) {
        return process::upgrade_all();
    }
    let mut numbers = arguments.iter().filter_map(|argument| c_int::try_from(*argument).ok());
    numbers.find_map(|number| number.upgrade().err()).map(Err)
}
