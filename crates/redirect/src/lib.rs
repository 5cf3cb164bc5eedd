//! `libtameike_redirect.so`: redirects paths of unchanged programs below a container's directory to a spool in memory.
//!
//! The spool is a tree of real files. Its *packer* is the `tameike run --aggregate-only` that started the program. The kernel serves calls
//! on open files; this library only maps paths, and keeps no descriptors and no state that `fork`, `exec` or `kill -9` could lose.
//!
//! The packer moves files that no process writes to into the container, and leaves a [stub](tameike_core::spool::stub) in the tree: a
//! dangling symbolic link that holds the file's attributes. Programs that bypass this library thus find no file rather than a wrong one.
//! The packer executes operations that must be serialized with packing: removal, rename, attribute changes by path, and access to content
//! of packed files. The library requests them through a socket ([protocol](tameike_core::spool::protocol)).
// The unit tests' program must not replace its C library.
#![cfg_attr(test, allow(dead_code, reason = "used by `abi` only"))]

#[cfg(not(test))]
mod abi;
mod attributes;
mod kernel;
mod location;
mod names;
mod permissions;
mod program;
mod resolve;
mod script;
mod spool;
mod temporary;
