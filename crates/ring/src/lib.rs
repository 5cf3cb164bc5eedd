//! The ring: calls of a program's files to the agent of its node, through memory that both share.
//!
//! [`client`] is the end of the program. What a program asks for that way and is declined,
//! it asks the kernel for, whose mounts of the views answer everything.
#![forbid(unsafe_code)]

pub mod client;
