//! `libtameike.so`: a C API for files of a job's views that bypasses the kernel, and for containers.
//!
//! The functions ([`abi`]) send requests to the node's agent through its ring, as `libtameike_preload.so` does. In addition to blocking
//! calls, there are vectors of pieces and asynchronous transfers ([`request`]). The kernel serves what the ring does not (other file
//! systems, files that the kernel has open, nodes without an agent), so that every call works on every path ([`file`]).
//!
//! [`aggregate`] provides containers of many files, which need no agent; [`dsm`] shared memory regions, and [`win`] remote
//! memory windows, which the kernel cannot serve.
//!
//! Functions are thread-safe, except that one thread at a time may use a request, but not async-signal-safe. No panic leaves the library,
//! and it prints nothing. In a child of `fork`, files and requests of the parent fail with `EIO`; the child may open files itself.

pub mod abi;
pub mod aggregate;
mod connection;
pub mod dsm;
mod file;
mod request;
pub mod win;
