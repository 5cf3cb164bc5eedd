//! Entry points for fuzzing the decoders of this crate (feature `fuzz`).

use crate::socket;

/// Decodes a message header; a header that decodes must encode to the same bytes.
pub fn frame_header(bytes: &[u8]) {
    socket::header::fuzz(bytes);
}

/// Encoded message headers as seeds of the corpus.
pub fn header_seeds() -> [(&'static str, Vec<u8>); 2] {
    socket::header::fuzz_seeds()
}

/// An encoded hello as a seed of the corpus.
pub fn hello_seed() -> Vec<u8> {
    socket::handshake::fuzz_seed()
}

/// Decodes the first bytes of a connection; a hello that is accepted must name this job and this node.
pub fn hello(bytes: &[u8]) {
    socket::handshake::fuzz(bytes);
}
