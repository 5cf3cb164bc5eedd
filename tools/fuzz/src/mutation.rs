//! Random mutations of inputs from a seed, which tests use instead of libFuzzer's coverage guidance.

/// Maximum length of an input, in bytes.
const SIZE_MAX: usize = 4096;
/// Bytes on which decoders branch.
const TELLING: [u8; 12] = [0, 1, 2, 4, 9, 0x7F, 0x80, 0xFE, 0xFF, b'"', b'{', b'='];

/// A pseudo-random number generator (xorshift).
pub struct Chance(u64);

impl Chance {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }
}

/// Mutates and combines existing inputs.
pub fn mutated(inputs: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = inputs.get(chance.below(inputs.len().max(1))).cloned().unwrap_or_default();
    for _ in 0..1 + chance.below(4) {
        let place = chance.below(bytes.len() + 1);
        match chance.below(7) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, chance.below(256) as u8),
            2 => bytes.insert(place, TELLING[chance.below(TELLING.len())]),
            3 if place < bytes.len() => bytes[place] ^= 1 << chance.below(8),
            4 if place < bytes.len() => bytes[place] = TELLING[chance.below(TELLING.len())],
            5 if place < bytes.len() => {
                bytes.remove(place);
            }
            _ => {
                let other = inputs.get(chance.below(inputs.len().max(1))).cloned().unwrap_or_default();
                let from = chance.below(other.len() + 1);
                bytes.truncate(place);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes.truncate(SIZE_MAX);
    bytes
}
