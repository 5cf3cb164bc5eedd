//! How data is kept smaller than it is, where that pays.

use serde::{Deserialize, Serialize};
use tameike_core::{Errno, Fault, Result};
use zstd::bulk::{Compressor, Decompressor};

/// What makes chunks smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// Nothing: chunks are kept as they are.
    #[default]
    None,
    /// Zstandard (RFC 8878), a frame for each chunk.
    Zstd,
}

impl Codec {
    /// The one that records call so.
    pub fn of_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// As fast as disks; higher levels gain little on what simulations write.
const LEVEL: i32 = 1;
/// What saves less than this part of a chunk is not worth its unpacking.
const LEAST_GAIN: usize = 8;
/// After so many chunks in a row that gained nothing ...
const VAIN_MAX: u32 = 8;
/// ... so many are kept as they are untried.
const UNTRIED: u32 = 64;

/// Makes chunks smaller, one after the other, for one writer.
pub struct Packer {
    compressor: Option<Compressor<'static>>,
    vain: u32,
    untried: u32,
}

impl Packer {
    /// By a codec.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(codec: Codec) -> Result<Self> {
        let compressor = match codec {
            Codec::None => None,
            Codec::Zstd => Some(Compressor::new(LEVEL).map_err(|_| Fault::from(Errno::ENOMEM))?),
        };
        Ok(Self { compressor, vain: 0, untried: 0 })
    }

    /// The codec that records name.
    pub fn codec(&self) -> Codec {
        if self.compressor.is_some() { Codec::Zstd } else { Codec::None }
    }

    /// Appends a chunk in a smaller form, if it has one that pays: whether it has.
    pub fn pack(&mut self, chunk: &[u8], into: &mut Vec<u8>) -> bool {
        let Some(compressor) = &mut self.compressor else { return false };
        if self.untried > 0 {
            self.untried -= 1;
            return false;
        }
        let start = into.len();
        let most = chunk.len() - chunk.len().div_ceil(LEAST_GAIN);
        into.resize(start + most, 0);
        // It fails where there is not room enough: that did not pay.
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

/// The chunk of `size` bytes that is kept so.
///
/// # Errors
/// `EIO` when it is none.
pub fn unpack(kept: &[u8], size: usize, into: &mut Vec<u8>) -> Result<()> {
    let damaged = |why: &dyn std::fmt::Display| {
        Fault::new(Errno::EIO, format!("a chunk of data cannot be unpacked: {why}"))
    };
    into.resize(size, 0);
    let mut decompressor = Decompressor::new().map_err(|_| Fault::from(Errno::ENOMEM))?;
    match decompressor.decompress_to_buffer(kept, &mut into[..]) {
        Ok(count) if count == size => Ok(()),
        Ok(count) => Err(damaged(&format_args!("it has {count} bytes in place of {size}"))),
        Err(error) => Err(damaged(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pays_is_packed_and_what_does_not_is_soon_left_alone() {
        let mut packer = Packer::new(Codec::Zstd).expect("memory");
        let (mut kept, mut back) = (vec![7], Vec::new());
        let text = b"the same again and again ".repeat(4000);
        assert!(packer.pack(&text, &mut kept));
        assert!(kept.len() < text.len() / 10);
        unpack(&kept[1..], text.len(), &mut back).expect("whole");
        assert_eq!(back, text);
        unpack(&kept[1..], text.len() - 1, &mut back).expect_err("shorter");
        unpack(&kept[1..], text.len() + 1, &mut back).expect_err("longer");
        unpack(&kept[2..], text.len(), &mut back).expect_err("cut");
        let noise: Vec<u8> =
            (0..50_000_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let noise: Vec<u8> = noise
            .iter()
            .zip(1_u32..)
            .map(|(byte, at)| byte ^ (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        kept.clear();
        assert!((0..VAIN_MAX + UNTRIED).all(|_| !packer.pack(&noise, &mut kept)));
        assert!(kept.is_empty());
        assert!(packer.pack(&text, &mut kept));
        assert!(!packer.pack(&[], &mut kept));
    }
}
