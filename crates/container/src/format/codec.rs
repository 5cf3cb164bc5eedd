//! Compression of chunks, where it pays.

use serde::{Deserialize, Serialize};
use tameike_core::{Errno, Fault, Result};
use zstd::bulk::{Compressor, Decompressor};

/// Compression of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// No compression.
    #[default]
    None,
    /// Zstandard (RFC 8878), one frame per chunk.
    Zstd,
}

impl Codec {
    /// Decodes the codec byte of a record.
    pub fn of_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Keeps up with disks; higher levels gain little on data of simulations.
const LEVEL: i32 = 1;
/// Chunks that compress by less than one eighth are stored uncompressed: unpacking costs more.
const LEAST_GAIN: usize = 8;
/// After this many incompressible chunks in a row ...
const VAIN_MAX: u32 = 8;
/// ... compression of this many chunks is not tried.
const UNTRIED: u32 = 64;

/// Compressor of one writer.
pub struct Packer {
    compressor: Option<Compressor<'static>>,
    vain: u32,
    untried: u32,
}

impl Packer {
    /// A compressor for a codec.
    pub fn new(codec: Codec) -> Result<Self> {
        let compressor = match codec {
            Codec::None => None,
            Codec::Zstd => Some(Compressor::new(LEVEL).map_err(|_| Fault::from(Errno::ENOMEM))?),
        };
        Ok(Self { compressor, vain: 0, untried: 0 })
    }

    /// The codec to name in records.
    pub fn codec(&self) -> Codec {
        if self.compressor.is_some() { Codec::Zstd } else { Codec::None }
    }

    /// Appends the compressed chunk if compression pays. Returns false, and appends nothing, if it does not.
    pub fn pack(&mut self, chunk: &[u8], into: &mut Vec<u8>) -> bool {
        let Some(compressor) = &mut self.compressor else { return false };
        if self.untried > 0 {
            self.untried -= 1;
            return false;
        }
        let start = into.len();
        let most = chunk.len() - chunk.len().div_ceil(LEAST_GAIN);
        into.resize(start + most, 0);
        // It fails if the buffer is too small, so that compression would not pay.
        let packed = compressor.compress_to_buffer(chunk, &mut into[start..]).ok();
        into.truncate(start + packed.unwrap_or(0));
        match packed {
            Some(_) => self.vain = 0,
            None => self.vain += 1,
        }
        if self.vain == VAIN_MAX {
            (self.vain, self.untried) = (0, UNTRIED);
        }
        packed.is_some()
    }
}

/// Decompresses a chunk of `size` bytes. Fails with `EIO` if it is damaged.
pub fn unpack(stored: &[u8], size: usize, into: &mut Vec<u8>) -> Result<()> {
    let damaged = |why: &dyn std::fmt::Display| {
        Fault::new(Errno::EIO, format!("a chunk of data cannot be unpacked: {why}"))
    };
    into.resize(size, 0);
    let mut decompressor = Decompressor::new().map_err(|_| Fault::from(Errno::ENOMEM))?;
    match decompressor.decompress_to_buffer(stored, &mut into[..]) {
        Ok(count) if count == size => Ok(()),
        Ok(count) => Err(damaged(&format_args!("it has {count} bytes instead of {size}"))),
        Err(error) => Err(damaged(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_chunks_are_packed_and_others_soon_not_tried() {
        let mut packer = Packer::new(Codec::Zstd).expect("memory");
        let (mut stored, mut back) = (vec![7], Vec::new());
        let text = b"the same again and again ".repeat(4000);
        assert!(packer.pack(&text, &mut stored));
        assert!(stored.len() < text.len() / 10);
        unpack(&stored[1..], text.len(), &mut back).expect("whole");
        assert_eq!(back, text);
        unpack(&stored[1..], text.len() - 1, &mut back).expect_err("shorter");
        unpack(&stored[1..], text.len() + 1, &mut back).expect_err("longer");
        unpack(&stored[2..], text.len(), &mut back).expect_err("truncated");
        let noise: Vec<u8> =
            (0..50_000_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let noise: Vec<u8> = noise
            .iter()
            .zip(1_u32..)
            .map(|(byte, at)| byte ^ (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        stored.clear();
        assert!((0..VAIN_MAX + UNTRIED).all(|_| !packer.pack(&noise, &mut stored)));
        assert!(stored.is_empty());
        assert!(packer.pack(&text, &mut stored));
        assert!(!packer.pack(&[], &mut stored));
    }
}
