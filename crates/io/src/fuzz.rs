//! Decoders of this room, for tests that feed them anything (feature `fuzz`).

use crate::fabric::socket;
use crate::fuse::abi;

/// Header of a message: what decodes is encoded to the same bytes.
pub fn frame_header(bytes: &[u8]) {
    socket::header::fuzz(bytes);
}

/// Headers as they are written.
pub fn header_seeds() -> [(&'static str, Vec<u8>); 2] {
    socket::header::fuzz_seeds()
}

/// A hello as it is written.
pub fn hello_seed() -> Vec<u8> {
    socket::handshake::fuzz_seed()
}

/// The first bytes of a connection: what is taken for a hello is one of this job, for this node.
pub fn hello(bytes: &[u8]) {
    socket::handshake::fuzz(bytes);
}

/// A request of the kernel: what is taken for one borrows from its own bytes only, and is the same in parts.
pub fn fuse_request(bytes: &[u8]) {
    abi::fuzz(bytes);
}

/// Requests as the kernel sends them.
pub fn fuse_request_seeds() -> Vec<(&'static str, Vec<u8>)> {
    abi::fuzz_seeds()
}
