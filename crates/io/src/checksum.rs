//! CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4), the checksum of messages, records and blocks.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// An incremental checksum. It allocates nothing.
pub struct Crc32c(Digest);

impl Crc32c {
    /// The checksum of no bytes.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum and resets it.
    pub fn take(&mut self) -> u32 {
        self.0.finalize_reset() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_3720_match() {
        let ascending: Vec<u8> = (0..32).collect();
        let examples =
            [([0; 32].as_slice(), 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&ascending, 0x46dd_794e)];
        let mut parts = Crc32c::new();
        for (bytes, sum) in examples {
            assert_eq!(crc32c(bytes), sum);
            [&bytes[..5], &[], &bytes[5..]].into_iter().for_each(|part| parts.update(part));
            assert_eq!(parts.take(), sum);
        }
    }
}
