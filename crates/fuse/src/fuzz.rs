//! Entry points for fuzzing the decoders of this crate (feature `fuzz`).

use crate::abi;

/// Decodes a kernel request; an accepted request borrows from `bytes` alone, and decodes the same when it arrives in parts.
pub fn fuse_request(bytes: &[u8]) {
    abi::fuzz(bytes);
}

/// Encoded kernel requests as seeds of the corpus.
pub fn fuse_request_seeds() -> Vec<(&'static str, Vec<u8>)> {
    abi::fuzz_seeds()
}
