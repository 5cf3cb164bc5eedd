//! `libtameike_preload.so`: serves calls of unchanged programs on files of the views through the ring.
//!
//! Loaded by `LD_PRELOAD`, its functions (`abi`) replace those of the C library. Calls on an open file of the ring ([`table`],
//! [`file`]) or on a path in a view ([`view_path`]) go to the agent. All others go to the kernel, which serves the same files through
//! the views' mounts. Before a call that only the kernel can serve, a ring descriptor is converted to a kernel descriptor for good
//! ([`upgrade`]).
//!
//! In the kernel, a ring descriptor is an `O_PATH` duplicate of its view's root. So the kernel allocates its number as POSIX specifies
//! and keeps close-on-exec, and system calls that bypass this library fail with `EBADF`.
//!
//! Guarantees: no allocation and no lock after the first call on a view. Functions that are async-signal-safe in the C library are so
//! here, and may be left by `siglongjmp`. No panic leaves the library. `errno` changes as in the C library.
//!
//! Limits (all are in `docs/preload.md`): pointers fail with `EFAULT` only if they are null, in the first page or outside user space, as
//! other checks would cost a system call; a bad pointer ends the program as in `memcpy`. Calls that the ring serves are no cancellation
//! points.
// The unit tests' program must not replace its C library.
#![cfg_attr(test, allow(dead_code, reason = "used by `abi` only"))]

#[cfg(not(test))]
mod abi;
mod connection;
mod file;
mod kernel;
mod mounts;
mod names;
mod session;
mod status;
mod table;
mod upgrade;
mod view_path;
mod views;
