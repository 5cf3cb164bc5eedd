//! Decoders of this room, for tests that feed them anything (feature `fuzz`).

use crate::fabric::socket;

/// Header of a message: what decodes is encoded to the same bytes.
pub fn frame_header(bytes: &[u8]) {
    socket::header::fuzz(bytes);
}

/// A header as it is written.
pub fn header_seed() -> Vec<u8> {
    socket::header::fuzz_seed()
}

/// A hello as it is written.
pub fn hello_seed() -> Vec<u8> {
    socket::handshake::fuzz_seed()
}

/// The first bytes of a connection: what is taken for a hello is one of this job, for this node.
pub fn hello(bytes: &[u8]) {
    socket::handshake::fuzz(bytes);
}
