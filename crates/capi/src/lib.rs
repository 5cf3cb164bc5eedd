//! `libtameike.so`: files of a job's views for programs in C, without the kernel on the way.
//!
//! The functions ([`abi`]) ask the agent of the node through its ring, as `libtameike_preload.so` does, but for programs that
//! want it: besides calls that wait there are lists of pieces, and transfers that go on while the program computes
//! ([`request`]). Whatever the ring does not serve (another file system, a file that the kernel has open, a node
//! without an agent) is done by the kernel, so that every call works on every path ([`file`]).
//!
//! Beside these, containers of many files ([`aggregate`]), with which no agent has to do.
//!
//! All may be called by any number of threads; a request by one at a time. None may be called in signal handlers. No panic
//! leaves the library, and nothing is printed. In a child of `fork`, files and requests of the parent fail with
//! `EIO`; what the child opens itself is its own.

pub mod abi;
pub mod aggregate;
mod connection;
mod file;
mod request;
