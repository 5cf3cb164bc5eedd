//! One agent: server, client and doors, put together on this node's machine.
#![forbid(unsafe_code)]

pub mod fuse;
