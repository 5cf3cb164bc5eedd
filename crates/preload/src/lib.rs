//! `libtameike_preload.so`: calls of an unchanged program on files of the views, answered through the ring.
//!
//! Put in place by `LD_PRELOAD`, its functions stand before those of the C library (`abi`). One that concerns an open
//! file of the ring ([`table`], [`file`]) or a path on a view ([`place`]) asks the agent; whatever is not handled is the
//! kernel's, which has the same files through the views' mounts. A descriptor of the ring that meets a call that
//! only the kernel can answer is first made the kernel's for good ([`upgrade`]).
//!
//! In the kernel, a descriptor of the ring is an `O_PATH` duplicate of its view's root: the number is taken as POSIX says,
//! close-on-exec is kept there, and what goes past this library (system calls by hand) fails with `EBADF`.
//!
//! Promises: no allocation and no lock after the first call on a view; every function that is async-signal-safe in the C
//! library is so here, and may be left by `siglongjmp`; no panic leaves the library; `errno` changes as the C library
//! has it. What it does not promise (`docs/preload.md` has all): `EFAULT` for pointers that are neither null nor in the first page nor outside of
//! user space, since finding out would cost a system call: such a call ends as one of `memcpy` would. A call that
//! the ring answers is not a point where a thread can be cancelled.
// The unit tests' own program must not stand before its C library.
#![cfg_attr(test, allow(dead_code, reason = "what only `abi` uses"))]

#[cfg(not(test))]
mod abi;
mod connection;
mod file;
mod kernel;
mod mounts;
mod names;
mod place;
mod session;
mod status;
mod table;
mod upgrade;
mod views;
