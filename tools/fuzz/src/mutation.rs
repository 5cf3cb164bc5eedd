//! Random mutations of inputs from a seed, which tests use instead of libFuzzer's coverage guidance.

/// Maximum length of an input, in bytes.
const SIZE_MAX: usize = 4096;
/// Bytes on which decoders branch.
const BRANCH_BYTES: [u8; 12] = [0, 1, 2, 4, 9, 0x7F, 0x80, 0xFE, 0xFF, b'"', b'{', b'='];

/// A pseudo-random number generator (xorshift).
pub struct Rng(u64);

impl Rng {
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
pub fn mutated(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = inputs.get(rng.below(inputs.len().max(1))).cloned().unwrap_or_default();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.below(256) as u8),
            2 => bytes.insert(at, BRANCH_BYTES[rng.below(BRANCH_BYTES.len())]),
            3 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            4 if at < bytes.len() => bytes[at] = BRANCH_BYTES[rng.below(BRANCH_BYTES.len())],
            5 if at < bytes.len() => {
                bytes.remove(at);
            }
            _ => {
                let other = inputs.get(rng.below(inputs.len().max(1))).cloned().unwrap_or_default();
                let from = rng.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes.truncate(SIZE_MAX);
    bytes
}
