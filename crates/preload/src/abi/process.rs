//! Start, children, `exec`, changes of credentials and namespaces, and end of a process.

use super::{contained, interpose, upgrade_first};
use crate::{connection, session, upgrade};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use tameike_interpose::Verdict;

type In = *const c_void;
type Out = *mut c_void;

// SAFETY: the loader calls these functions once, after the C library is initialized.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

// SAFETY: the loader calls these functions when the process ends, after the program's `atexit` functions.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    contained(|| {
        session::begin();
        if connection::is_enabled() {
            // SAFETY: the functions belong to this library, which stays loaded until the process ends.
            unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
        }
    });
}

/// Other libraries may still write, through the kernel, which closes files before the parent is notified of the end.
extern "C" fn end() {
    contained(session::turn_off);
}

/// A child has no connection at first, and shares offsets with its parent, which only the kernel supports.
unsafe extern "C" fn before_fork() {
    upgrade_all::<()>();
}

unsafe extern "C" fn after_fork() {
    contained(session::begin_as_child);
}

/// Upgrades all files; new ones may use the ring.
pub fn upgrade_all<T>() -> Verdict<T> {
    contained(upgrade::all);
    None
}

/// Turns the ring off for good.
fn off<T>() -> Verdict<T> {
    session::turn_off();
    None
}

/// `clone`: a child with separate memory is treated as one of `fork`. A child that shares memory but not descriptors would see ring
/// files that it does not have.
fn clone_with(flags: c_int) -> Verdict<c_int> {
    match (flags & libc::CLONE_VM != 0, flags & libc::CLONE_FILES != 0) {
        (true, true) => None,
        (true, false) => off(),
        (false, _) => upgrade_all(),
    }
}

/// The kernel enforces file size limits, with a signal.
fn limit_set<T>(resource: c_uint) -> Verdict<T> {
    if resource == libc::RLIMIT_FSIZE { off() } else { None }
}

/// `UL_SETFSIZE` of `ulimit`.
const SET_SIZE_LIMIT: c_int = 2;

interpose! {
    fn [clone, __clone](function: In, stack: Out, flags: c_int, argument: Out, parent: Out, local: Out, child: Out) -> c_int =
        clone_with(flags);
    fn [posix_spawn, posix_spawnp](
        process: Out, path: *const c_char, actions: In, attributes: In, arguments: In, environment: In
    ) -> c_int = upgrade_all();
    fn [system, __libc_system](command: *const c_char) -> c_int = upgrade_all();
    fn [popen, _IO_popen](command: *const c_char, mode: *const c_char) -> Out = upgrade_all();
    fn [execve](path: *const c_char, arguments: In, environment: In) -> c_int = upgrade_all();
    fn [execv, execvp](path: *const c_char, arguments: In) -> c_int = upgrade_all();
    fn [execvpe](path: *const c_char, arguments: In, environment: In) -> c_int = upgrade_all();
    fn [fexecve](number: c_int, arguments: In, environment: In) -> c_int = upgrade_all();
    fn [execveat](directory: c_int, path: *const c_char, arguments: In, environment: In, flags: c_int) -> c_int =
        upgrade_all();
    fn [wordexp](words: *const c_char, out: Out, flags: c_int) -> c_int = upgrade_all();
    fn [ulimit](command: c_int, limit: c_long) -> c_long = if command == SET_SIZE_LIMIT { off() } else { None };
    fn [pidfd_getfd](process: c_int, number: c_int, flags: c_uint) -> c_int = upgrade_first(&[&number]);
    fn [setuid](user: c_uint) -> c_int = off();
    fn [seteuid](user: c_uint) -> c_int = off();
    fn [setreuid](real: c_uint, effective: c_uint) -> c_int = off();
    fn [setresuid](real: c_uint, effective: c_uint, saved: c_uint) -> c_int = off();
    fn [setfsuid](user: c_uint) -> c_int = off();
    fn [setgid](group: c_uint) -> c_int = off();
    fn [setegid](group: c_uint) -> c_int = off();
    fn [setregid](real: c_uint, effective: c_uint) -> c_int = off();
    fn [setresgid](real: c_uint, effective: c_uint, saved: c_uint) -> c_int = off();
    fn [setfsgid](group: c_uint) -> c_int = off();
    fn [setgroups](count: usize, groups: In) -> c_int = off();
    fn [initgroups](user: *const c_char, group: c_uint) -> c_int = off();
    fn [capset](header: Out, data: Out) -> c_int = off();
    fn [chroot](path: *const c_char) -> c_int = off();
    fn [pivot_root](new: *const c_char, old: *const c_char) -> c_int = off();
    fn [unshare](flags: c_int) -> c_int = off();
    fn [setns](number: c_int, kind: c_int) -> c_int = off();
    fn [mount](source: *const c_char, target: *const c_char, kind: *const c_char, flags: u64, data: In) -> c_int = off();
    fn [move_mount](from: c_int, source: *const c_char, to: c_int, target: *const c_char, flags: c_uint) -> c_int = off();
    fn [mount_setattr](number: c_int, path: *const c_char, flags: c_uint, attributes: Out, size: usize) -> c_int = off();
    fn [umount](target: *const c_char) -> c_int = off();
    fn [umount2](target: *const c_char, flags: c_int) -> c_int = off();
    fn [setrlimit, setrlimit64](resource: c_uint, limit: In) -> c_int = limit_set(resource);
    fn [prlimit, prlimit64](process: c_int, resource: c_uint, new: In, old: Out) -> c_int =
        if new.is_null() { None } else { limit_set(resource) };
    fn [prctl](operation: c_int, second: c_long, third: c_long, fourth: c_long, fifth: c_long) -> c_int =
        if operation == libc::PR_SET_SECCOMP { off() } else { None };
    // liburing and libaio pass descriptors to the kernel in memory that this library does not see.
    fn [io_uring_queue_init](entries: c_uint, ring: Out, flags: c_uint) -> c_int = off();
    fn [io_uring_queue_init_params](entries: c_uint, ring: Out, parameters: Out) -> c_int = off();
    fn [io_uring_queue_init_mem](
        entries: c_uint, ring: Out, parameters: Out, memory: Out, size: usize
    ) -> c_int = off();
    fn [io_uring_setup](entries: c_uint, parameters: Out) -> c_int = off();
    fn [io_setup](entries: c_int, context: Out) -> c_int = off();
    fn [io_queue_init](entries: c_int, context: Out) -> c_int = off();
}

// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umask(mask: c_uint) -> c_uint {
    session::note_umask(mask);
    tameike_interpose::call!(umask(mask: c_uint) -> c_uint)
}

/// `_Fork` runs no fork handlers in the child: reset the library here.
// SAFETY: the name is that of the C library's function, and so are the arguments.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Fork() -> c_int {
    upgrade_all::<()>();
    let child = tameike_interpose::call!(_Fork() -> c_int);
    if child == 0 {
        contained(session::begin_as_child);
    }
    child
}

/// Defines jumps, which may leave calls of this library.
macro_rules! jump {
    ($($name:ident)+) => {$(
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(target: Out, value: c_int) -> ! {
            connection::note_jump();
            tameike_interpose::call!($name(target: Out, value: c_int) -> !)
        }
    )+};
}

jump! { longjmp _longjmp siglongjmp __longjmp_chk }

/// Defines functions that end the process: they upgrade its files, which the kernel closes before the parent is notified.
macro_rules! end {
    ($($name:ident)+) => {$(
        // SAFETY: the name is that of the C library's function, and so are the arguments.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(status: c_int) -> ! {
            end();
            tameike_interpose::call!($name(status: c_int) -> !)
        }
    )+};
}

end! { _exit _Exit quick_exit }
