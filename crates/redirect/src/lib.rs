//! `libtameike_redirect.so`: an unchanged program's paths below one directory, a container, lead to a spool in memory.
//!
//! The spool is a tree of real files beside which a *packer* lives: `tameike run --aggregate-only`, which started the program. What the
//! program does on an open file is between it and the kernel. This library only says which file a path means, so it keeps no
//! descriptors and no state that `fork`, `exec` or `kill -9` could lose. The packer moves files that nobody writes to into the
//! container, and leaves a [stub](tameike_core::spool::stub) in the tree: a symbolic link that leads nowhere and tells the file's attributes, so that
//! who comes past this library finds no file rather than a wrong one. Whatever has to be of one mind with the packer (removing, renaming,
//! attributes by path, content of a packed file) is done by it, asked through a socket ([protocol](tameike_core::spool::protocol)).
// The unit tests' own program must not stand before its C library.
#![cfg_attr(test, allow(dead_code, reason = "what only `abi` uses"))]

#[cfg(not(test))]
mod abi;
mod attributes;
mod kernel;
mod names;
mod place;
mod program;
mod resolve;
mod rights;
mod script;
mod spool;
mod temporary;
