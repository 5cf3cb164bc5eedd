//! One agent: server, client and doors, put together on this node's machine.

pub mod control;
